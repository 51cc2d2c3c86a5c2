"""Every rule of expert parallelism: what breaks it, its sentence, and what keeps all rules."""

from __future__ import annotations

import math

import msgspec
import pytest
from support.cards import MIXTURE, SMALL

from engines.contract import ExpertShard
from engines.experts.refusals import COMMUNICATORS, RULES, Wish, load_refusal, refusal, wish_of
from events.experts import EplbSettings
from events.values import ModelCard, PlacementSettings, Quantization

EPLB = EplbSettings(redundant_experts=4)


def wish(card: ModelCard = MIXTURE, ranks: int = 2, kind: str = "", **settings: object) -> Wish:
    asked = PlacementSettings(**{"shard_strategy": "expert"} | settings)  # type: ignore[arg-type]
    return wish_of(card, asked, ranks, kind)


def card(**changes: object) -> ModelCard:
    return msgspec.structs.replace(MIXTURE, **changes)


def eplb(**changes: object) -> EplbSettings:
    return msgspec.structs.replace(EPLB, **changes)


BROKEN: dict[str, list[tuple[Wish, str]]] = {
    "eplb_without_experts": [
        (wish(shard_strategy="auto", eplb=EPLB), "eplb is for experts that are spread over ranks, and the"),
        (wish(shard_strategy="tensor", eplb=EplbSettings()), "the strategy is tensor"),
        (
            wish(shard_strategy="auto", ranks=1, eplb=EPLB),
            "ask for the shard_strategy expert, or leave it out",
        ),
    ],
    "dispatch_without_experts": [
        (wish(shard_strategy="pipeline", expert_dispatch="all_to_all"), "expert_dispatch is for experts")
    ],
    "format_without_experts": [
        (wish(shard_strategy="auto", expert_format="int8"), "expert_format is for experts")
    ],
    "one_rank": [
        (wish(ranks=1), "One rank has all experts"),
        (wish(ranks=1, eplb=EPLB), "ask for 2 ranks or more, or for another strategy"),
    ],
    "async": [(wish(eplb=eplb(use_async=True)), "eplb.use_async moves weights beside a forward pass")],
    "out_of_bounds": [
        (wish(eplb=eplb(redundant_experts=-1)), "eplb.redundant_experts is -1; it must be at least 0"),
        (wish(eplb=eplb(window=0)), "eplb.window is 0; it must be at least 1"),
        (wish(eplb=eplb(interval=0, window=1)), "eplb.interval is 0; it must be at least 1"),
        (wish(eplb=eplb(interval=-3, window=-5)), "eplb.window is -5"),
        (wish(eplb=eplb(min_tokens=0)), "eplb.min_tokens is 0"),
        (wish(eplb=eplb(max_bytes=-1)), "eplb.max_bytes is -1"),
        (wish(eplb=eplb(max_bytes=2**63)), f"at most {2**63 - 1}"),
        (wish(eplb=eplb(horizon_s=0.0)), "eplb.horizon_s is 0.0; it must be above 0"),
        (wish(eplb=eplb(horizon_s=math.nan)), "eplb.horizon_s is nan"),
        (wish(eplb=eplb(stage_timeout_s=math.inf)), "eplb.stage_timeout_s is inf"),
        (wish(eplb=eplb(apply_timeout_s=-1.0)), "eplb.apply_timeout_s is -1.0"),
    ],
    "window_longer_than_interval": [
        (wish(eplb=eplb(window=301)), "eplb.window is 301 steps and eplb.interval 300")
    ],
    "no_moe_layer": [
        (wish(SMALL), "Small-135M has no layer with experts"),
        (wish(SMALL, eplb=EPLB), "place it with the strategy auto, pipeline or tensor"),
        (wish(card(n_moe_layers=0)), "has no layer with experts"),
    ],
    "unknown_layout": [
        (wish(card(model_type="dbrx", n_moe_layers=0)), "is dbrx, and how its experts lie in its files"),
        (wish(card(model_type="", n_moe_layers=0)), "Known are glm4_moe, mixtral, olmoe, qwen2_moe"),
    ],
    "quantized_weights": [
        (wish(card(quantization=Quantization(bits=4, group_size=64))), "is quantized already")
    ],
    "unknown_width": [(wish(card(ffn_size=0)), "does not say how wide an expert is")],
    "uneven_slots": [
        (wish(ranks=3), "has 8 experts a layer, which 3 ranks can't share evenly"),
        (wish(ranks=3), "or for 1 redundant_experts in eplb"),
        (wish(ranks=16, eplb=EPLB), "8 experts a layer and 4 redundant ones, which 16 ranks"),
        (wish(ranks=16), "for 8 redundant_experts"),
    ],
    "expert_twice_on_a_rank": [
        (wish(eplb=eplb(redundant_experts=10)), "10 redundant experts are more than 2 ranks can hold"),
        (wish(eplb=eplb(redundant_experts=10)), "ask for at most 8"),
    ],
    "device_kind": [(wish(kind="metal"), "Experts can't be spread over metal devices")],
    "communicator": [
        (wish(kind="cpu", eplb=eplb(communicator="nccl")), "between cpu devices it is gloo that carries"),
        (wish(kind="cuda", eplb=eplb(communicator="hccl")), "between cuda devices it is nccl"),
        (wish(kind="npu", eplb=eplb(communicator="gloo")), "between npu devices it is hccl"),
    ],
}


@pytest.mark.parametrize(
    ("name", "asked", "sentence"),
    [(name, asked, sentence) for name, cases in BROKEN.items() for asked, sentence in cases],
)
def test_a_broken_rule_has_its_sentence(name: str, asked: Wish, sentence: str) -> None:
    cause = refusal(asked)
    assert cause is not None
    assert cause.detail == {"rule": name}
    assert sentence in cause.message
    assert cause.message.endswith(".")


def test_every_rule_has_a_case() -> None:
    assert list(BROKEN) == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    "asked",
    [
        wish(),
        wish(ranks=0),
        wish(ranks=8),
        wish(ranks=0, eplb=EPLB),
        wish(ranks=3, eplb=eplb(redundant_experts=1)),
        wish(eplb=eplb(redundant_experts=8)),
        wish(eplb=EplbSettings(window=300)),
        wish(expert_dispatch="all_to_all", expert_format="int8", eplb=EPLB),
        wish(SMALL, shard_strategy="auto", ranks=1),
        wish(SMALL, shard_strategy="tensor"),
        wish(card(model_type="dbrx", n_moe_layers=0), shard_strategy="auto"),
        *(wish(kind=kind, eplb=eplb(communicator=name)) for kind, name in COMMUNICATORS.items()),
    ],
)
def test_what_keeps_all_rules_is_not_refused(asked: Wish) -> None:
    assert refusal(asked) is None


# The second time, in the runner

MAPS = [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]] * MIXTURE.n_moe_layers


def shard(**changes: object) -> ExpertShard:
    fields = {"dispatch": "shared", "format": "plain", "slots": 12, "eplb": EPLB, "maps": MAPS}
    return ExpertShard(**fields | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [shard(), shard(slots=8, eplb=None, maps=[]), shard(maps=[list(reversed(row)) for row in MAPS])],
)
def test_a_shard_as_placed_is_loaded(given: ExpertShard) -> None:
    assert load_refusal(MIXTURE, given, 2, "cpu") is None


@pytest.mark.parametrize(
    ("given", "world", "rule"),
    [
        (shard(), 1, "one_rank"),
        (shard(), 5, "uneven_slots"),
        (shard(slots=8), 2, "maps"),
        (shard(maps=[]), 2, "maps"),
        (shard(maps=MAPS[1:]), 2, "maps"),
        (shard(maps=[*MAPS[1:], MAPS[0][:-1]]), 2, "maps"),
        (shard(maps=[*MAPS[1:], [0, 1, 2, 3, 4, 5, 6, 6, 0, 1, 2, 3]]), 2, "maps"),
        (shard(maps=[*MAPS[1:], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 8]]), 2, "maps"),
        (shard(slots=8, eplb=None), 2, "maps"),
        (shard(eplb=eplb(communicator="nccl")), 2, "communicator"),
    ],
)
def test_a_shard_that_can_not_be_is_refused(given: ExpertShard, world: int, rule: str) -> None:
    cause = load_refusal(MIXTURE, given, world, "cpu")
    assert cause is not None
    assert cause.detail == {"rule": rule}
