"""What is refused of expert parallelism and its load balancer, before anything is served: one table.

Placement asks it before it decides, a runner once more before it loads. Rules in the order of the table; the
first that is broken gives its sentence. What only loaded tensors can show (a view that is not contiguous,
half a pair of weights and scales) is checked where they are, in the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from engines.contract import ExpertShard
from engines.experts.families import FAMILIES
from events.experts import Communicator, EplbSettings, ExpertDispatch, ExpertFormat
from events.values import Cause, ModelCard, PlacementSettings, ShardStrategy

COMMUNICATORS: dict[str, Communicator] = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""What carries expert weights between devices of a kind. A kind that is not here carries no experts."""

SETTINGS, MODEL = "invalid_settings", "experts_refused"
"""Codes of a cause: settings that are wrong in themselves, and those that don't go with the model."""

_MOST = 2**31 - 1
_WITHIN: dict[str, tuple[int, int]] = {
    "redundant_experts": (0, _MOST),
    "window": (1, _MOST),
    "interval": (1, _MOST),
    "min_tokens": (1, _MOST),
    "horizon_s": (0, _MOST),
    "max_bytes": (0, 2**63 - 1),
    "stage_timeout_s": (0, _MOST),
    "apply_timeout_s": (0, _MOST),
}
"""Bounds of the numbers of `EplbSettings`; seconds are above the lower one."""


class Wish(NamedTuple):
    """What is asked for. ``ranks`` is 0 and ``kind``, that of the devices, empty where not chosen yet."""

    card: ModelCard
    strategy: ShardStrategy
    ranks: int
    dispatch: ExpertDispatch
    format: ExpertFormat
    eplb: EplbSettings | None
    kind: str = ""

    @property
    def slots(self) -> int:
        """Physical experts of a layer."""
        return self.card.n_experts + (self.eplb.redundant_experts if self.eplb else 0)


class Rule(NamedTuple):
    """One refusal: a name for programs, and what gives the sentence with what to do where it is broken."""

    name: str
    code: str
    broken: Callable[[Wish], str | None]


def wish_of(card: ModelCard, settings: PlacementSettings, ranks: int, kind: str = "") -> Wish:
    """What a user's settings ask for, with ``ranks`` ranks on devices of ``kind``."""
    strategy, dispatch, form = settings.shard_strategy, settings.expert_dispatch, settings.expert_format
    return Wish(card, strategy, ranks, dispatch, form, settings.eplb, kind)


def refusal(wish: Wish) -> Cause | None:
    """The first rule that ``wish`` breaks, as a cause whose detail names it; None where it keeps all."""
    for rule in RULES:
        sentence = rule.broken(wish)
        if sentence is not None:
            return Cause(code=rule.code, message=sentence, detail={"rule": rule.name})
    return None


def load_refusal(card: ModelCard, shard: ExpertShard, world: int, kind: str) -> Cause | None:
    """As `refusal`, for one of ``world`` ranks on a device of ``kind`` that is about to load its shard."""
    wish = Wish(card, "expert", world, shard.dispatch, shard.format, shard.eplb, kind)
    cause = refusal(wish)
    if cause is not None or (shard.slots == wish.slots and _names_every_expert(wish, shard.maps)):
        return cause
    message = (
        f"The placement names {shard.slots} slots a layer and {len(shard.maps)} maps, which do not put each "
        f"of the {card.n_experts} experts of {card.n_moe_layers} layers into one of {wish.slots} slots: the "
        "model's config.json is another one than that which it was placed by. Fetch the model again."
    )
    return Cause(code="config_conflict", message=message, detail={"rule": "maps"})


def _names_every_expert(wish: Wish, maps: list[list[int]]) -> bool:
    if wish.eplb is None:
        return not maps
    every = set(range(wish.card.n_experts))
    return len(maps) == wish.card.n_moe_layers and all(
        len(slots) == wish.slots and set(slots) == every for slots in maps
    )


def _eplb_without_experts(w: Wish) -> str | None:
    return _without_experts(w, "eplb") if w.eplb else None


def _dispatch_without_experts(w: Wish) -> str | None:
    return _without_experts(w, "expert_dispatch") if w.dispatch != "shared" else None


def _format_without_experts(w: Wish) -> str | None:
    return _without_experts(w, "expert_format") if w.format != "plain" else None


def _without_experts(w: Wish, what: str) -> str | None:
    if w.strategy == "expert":
        return None
    return (
        f"{what} is for experts that are spread over ranks, and the strategy is {w.strategy}: ask for the "
        "shard_strategy expert, or leave it out."
    )


def _one_rank(w: Wish) -> str | None:
    if w.strategy != "expert" or w.ranks != 1:
        return None
    return (
        "One rank has all experts, so that there is nothing to spread or to balance: ask for 2 ranks or "
        "more, or for another strategy."
    )


def _async(w: Wish) -> str | None:
    if not _eplb(w).use_async:
        return None
    return (
        "eplb.use_async moves weights beside a forward pass that is running, and no rank may see half a "
        "move: leave it out. Layers move between two batches, one at a time."
    )


def _out_of_bounds(w: Wish) -> str | None:
    for name, (least, most) in _WITHIN.items():
        number: float = getattr(_eplb(w), name)
        seconds = name.endswith("_s")
        enough = number > least if seconds else number >= least
        if not (math.isfinite(number) and enough and number <= most):
            bound = f"above {least}" if seconds else f"at least {least}"
            return f"eplb.{name} is {number}; it must be {bound} and at most {most}."
    return None


def _long_window(w: Wish) -> str | None:
    window, interval = _eplb(w).window, _eplb(w).interval
    if window <= interval:
        return None
    return (
        f"eplb.window is {window} steps and eplb.interval {interval}: a decision would count steps of the "
        "one before. Ask for a window of at most the interval."
    )


def _no_moe_layer(w: Wish) -> str | None:
    card = w.card
    if w.strategy != "expert" or (card.n_experts and (card.n_moe_layers or not _is_known(card))):
        return None
    return (
        f"{card.model_id} has no layer with experts, so that there are none to spread: place it with the "
        "strategy auto, pipeline or tensor."
    )


def _unknown_layout(w: Wish) -> str | None:
    if w.strategy != "expert" or _is_known(w.card):
        return None
    kind = w.card.model_type or "of no type"
    return (
        f"{w.card.model_id} is {kind}, and how its experts lie in its files is not known here. Known are "
        f"{', '.join(FAMILIES)}; place it without the strategy expert."
    )


def _quantized_weights(w: Wish) -> str | None:
    if w.strategy != "expert" or w.card.quantization is None:
        return None
    return (
        f"{w.card.model_id} is quantized already, and experts are spread as plain weights or as int8 made "
        "of those: take the model's unquantized weights, with the expert_format int8 where room is short."
    )


def _unknown_width(w: Wish) -> str | None:
    if w.strategy != "expert" or w.card.ffn_size:
        return None
    return (
        f"The config.json of {w.card.model_id} does not say how wide an expert is (moe_intermediate_size, "
        "intermediate_size), so that memory can't be counted: add it."
    )


def _uneven_slots(w: Wish) -> str | None:
    if w.strategy != "expert" or not w.ranks or w.slots % w.ranks == 0:
        return None
    redundant = _eplb(w).redundant_experts
    extra = f" and {redundant} redundant ones" if redundant else ""
    return (
        f"{w.card.model_id} has {w.card.n_experts} experts a layer{extra}, which {w.ranks} ranks can't share "
        f"evenly: ask for another number of ranks, or for {redundant + -w.slots % w.ranks} "
        "redundant_experts in eplb."
    )


def _expert_twice(w: Wish) -> str | None:
    if w.strategy != "expert" or not w.ranks or w.slots <= w.card.n_experts * w.ranks:
        return None
    return (
        f"{_eplb(w).redundant_experts} redundant experts are more than {w.ranks} ranks can hold without two "
        "of one expert on a rank, which balances nothing: ask for at most "
        f"{w.card.n_experts * (w.ranks - 1)}."
    )


def _device_kind(w: Wish) -> str | None:
    if w.strategy != "expert" or not w.kind or w.kind in COMMUNICATORS:
        return None
    return (
        f"Experts can't be spread over {w.kind} devices: nothing carries their tokens. Ask for devices of "
        f"the kind {' or '.join(COMMUNICATORS)}."
    )


def _communicator(w: Wish) -> str | None:
    asked, right = _eplb(w).communicator, COMMUNICATORS.get(w.kind, "")
    if not asked or not right or asked == right:
        return None
    return (
        f"eplb.communicator is {asked}, and between {w.kind} devices it is {right} that carries weights: "
        "leave it out, or ask for devices that go with it."
    )


RULES = (
    Rule("eplb_without_experts", SETTINGS, _eplb_without_experts),
    Rule("dispatch_without_experts", SETTINGS, _dispatch_without_experts),
    Rule("format_without_experts", SETTINGS, _format_without_experts),
    Rule("one_rank", SETTINGS, _one_rank),
    Rule("async", SETTINGS, _async),
    Rule("out_of_bounds", SETTINGS, _out_of_bounds),
    Rule("window_longer_than_interval", SETTINGS, _long_window),
    Rule("no_moe_layer", MODEL, _no_moe_layer),
    Rule("unknown_layout", MODEL, _unknown_layout),
    Rule("quantized_weights", MODEL, _quantized_weights),
    Rule("unknown_width", MODEL, _unknown_width),
    Rule("uneven_slots", MODEL, _uneven_slots),
    Rule("expert_twice_on_a_rank", MODEL, _expert_twice),
    Rule("device_kind", MODEL, _device_kind),
    Rule("communicator", MODEL, _communicator),
)
"""Every refusal. The last two need the devices' kind, the two before them the number of ranks."""


def _eplb(w: Wish) -> EplbSettings:
    """The balancer's settings, or the defaults, which break no rule."""
    return w.eplb or EplbSettings()


def _is_known(card: ModelCard) -> bool:
    return card.model_type in FAMILIES
