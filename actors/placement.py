"""Placement: which device carries an instance, as a pure function of state with its reasons.

Every device of every node that is up is a candidate; each gets its numbers and a verdict, and all of them
go into the decision. The work is one pass over the devices and one sort: O(n log n). `actors.candidates` has
the numbers, `actors.sharding` the groups of several devices, `actors.weighing` whether more nodes are faster,
`actors.expert_placement` what experts add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from actors import expert_placement
from actors.candidates import DTYPE_BYTES, gib, kv_bytes_per_token, seats, weights_in_memory
from actors.refusal import Rejected
from actors.sharding import Former, Group, Need, Seat, Shard, form_group, pipeline_group, tensor_group
from actors.weighing import Question, weighed
from events.ids import drawn
from events.values import Candidate, Cause, Dtype, ModelCard, Placement, PlacementSettings, Rank
from projections.state import ClusterState, Instance, Link, Model

DEFAULT_CONTEXT = 8192
"""Tokens per sequence where the user names none and the model could do more."""
_KIND_RANK = {"metal": 0, "cuda": 0, "npu": 0, "cpu": 1}

Preference = Callable[[Candidate, str], tuple[object, ...]]
"""Sort key of a fitting candidate and its device kind; the smallest is chosen."""


class Choice(NamedTuple):
    """The outcome of `place`: a placement, and every candidate with its verdict."""

    placement: Placement
    candidates: list[Candidate]


class DoesNotFit(Rejected):
    """No candidate can carry the model; ``candidates`` says why, one by one."""

    def __init__(self, cause: Cause, candidates: list[Candidate]) -> None:
        super().__init__(cause)
        self.candidates = candidates


def context_of(card: ModelCard, settings: PlacementSettings) -> int:
    """Tokens per sequence that the placement reserves. Raises `Rejected` where the model has fewer."""
    if settings.context > card.max_context:
        raise Rejected(
            Cause(
                code="context_too_long",
                message=f"{card.model_id} holds {card.max_context} tokens, and {settings.context} were "
                f"asked for; ask for at most {card.max_context}.",
            )
        )
    return settings.context or min(card.max_context, DEFAULT_CONTEXT)


def most_room(candidate: Candidate, kind: str) -> tuple[object, ...]:
    """The default preference: files at hand, then an accelerator, then the most free memory."""
    return (
        not candidate.has_files,
        _KIND_RANK[kind],
        candidate.needed_bytes - candidate.free_bytes,
        candidate.node_id,
        candidate.device_id,
    )


def best_fit(candidate: Candidate, kind: str) -> tuple[object, ...]:
    """Files at hand, then an accelerator, then the least room left: keeps big devices free."""
    return (
        not candidate.has_files,
        _KIND_RANK[kind],
        candidate.free_bytes - candidate.needed_bytes,
        candidate.node_id,
        candidate.device_id,
    )


PREFERENCES: dict[str, Preference] = {"most-room": most_room, "best-fit": best_fit}
"""The policies that `cuebook replay what-if --policy` knows; the first is the one in force."""


def place(
    state: ClusterState,
    model: Model,
    settings: PlacementSettings,
    *,
    seed: str,
    attempt: int,
    prefer: Preference = most_room,
    degrade: bool = False,
) -> Choice:
    """Choose the device or devices for ``model``. Runner ids are drawn from ``seed``.

    One device where one is enough and no more are asked for, else the group that `actors.sharding` forms; or
    one that `actors.weighing` predicts to be clearly faster, and the placement's note says so. With
    ``degrade`` fewer ranks than asked for will do, and the note says so as well.

    Raises `DoesNotFit` (a `Rejected`) with every candidate where nothing can carry it.
    """
    context = context_of(model.card, settings)
    _check_settings(settings, model.card)
    found = seats(state, model, settings, context)
    wanted = settings.ranks
    refusal = ""
    for ranks in range(wanted, 0, -1) if degrade and wanted > 1 else [wanted]:
        asked = settings if ranks == wanted else expert_placement.with_fewer(settings, model.card, ranks)
        group = _group(state, model.card, asked, context, found, ranks, prefer)
        if isinstance(group, Group):
            group, faster = _faster(state, model.card, settings, context, found, group)
            less = f"{wanted} ranks were asked for: {refusal}" if ranks != wanted else ""
            notes = [less, *expert_placement.notes(settings, asked, model.card, group), faster]
            note = "; ".join(note for note in notes if note)
            return _choice(asked, group, found, context, seed, attempt, note)
        refusal = refusal or group
    raise _does_not_fit(model.card, settings, [seat.candidate for seat in found], refusal)


def _group(
    state: ClusterState,
    card: ModelCard,
    settings: PlacementSettings,
    context: int,
    found: list[Seat],
    ranks: int,
    prefer: Preference,
) -> Group | str:
    """One device, or a group of ``ranks`` (0: as few as possible); or why there is none."""
    strategy = settings.shard_strategy
    fits = (seat for seat in found if seat.candidate.verdict == "fits")
    fitting = sorted(fits, key=lambda seat: prefer(seat.candidate, seat.kind))
    if ranks <= 1 and fitting and strategy != "expert":
        seat = _fastest(fitting[0], fitting)
        return Group(strategy, [Shard(seat, 0, card.n_layers, seat.candidate.needed_bytes)])
    if ranks == 1:
        return "no single device holds it"
    way = "pipeline" if strategy == "auto" else strategy
    usable = [seat for seat in found if way in seat.strategies and not _barred(seat.candidate)]
    if len(usable) < 2:
        several = "at least 2" if strategy == "expert" else ""
        wanted = str(ranks) if ranks else several
        return wanted and f"{wanted} ranks need as many devices, and {len(usable)} may be used"
    former = partial(_former, card, settings, context * settings.batch)
    return form_group(former, usable, partial(_latency, state), ranks, one_kind=strategy == "expert")


def _faster(
    state: ClusterState,
    card: ModelCard,
    settings: PlacementSettings,
    context: int,
    found: list[Seat],
    fewest: Group,
) -> tuple[Group, str]:
    """The group with the fewest nodes, or one that is clearly faster, with the predictions.

    What the user has asked for stands: so many ranks, a node, a device.
    """
    asked = settings.ranks or settings.node_id or settings.device_id
    if asked or settings.shard_strategy == "expert":
        return fewest, ""
    question = Question(
        card,
        settings.shard_strategy,
        partial(_need, card, context * settings.batch),
        partial(_latency, state),
        partial(_link, state),
    )
    usable = [seat for seat in found if not _barred(seat.candidate)]
    fitting = [seat for seat in usable if seat.candidate.verdict == "fits"]
    return weighed(fewest, fitting, usable, question)


def _fastest(seat: Seat, fitting: Sequence[Seat]) -> Seat:
    """The seat of the fastest engine on the device of ``seat``; those that measured nothing come last."""
    return max((other for other in fitting if other.key[:2] == seat.key[:2]), key=lambda other: other.speed)


def _former(card: ModelCard, settings: PlacementSettings, tokens: int, dtype: Dtype) -> Former:
    """How to form a group in ``dtype``, for ``tokens`` tokens in all KV caches together."""
    if settings.shard_strategy == "expert":
        return expert_placement.former(card, settings, tokens, dtype)
    form = tensor_group if settings.shard_strategy == "tensor" else pipeline_group
    return partial(form, _need(card, tokens, dtype))


def _need(card: ModelCard, tokens: int, dtype: Dtype) -> Need:
    weights = weights_in_memory(card, dtype)
    edges = 2 * card.vocab_size * card.hidden_size * DTYPE_BYTES[dtype]
    return Need(card, weights, min(edges, weights // 2), kv_bytes_per_token(card, dtype) * tokens)


def _barred(candidate: Candidate) -> bool:
    """Refused for something else than its memory."""
    return len(candidate.reasons) > (candidate.needed_bytes > candidate.free_bytes)


def _latency(state: ClusterState, a: str, b: str) -> float | None:
    if a == b:
        return 0.0
    link = _link(state, a, b)
    return link.latency_s if link else None


def _link(state: ClusterState, a: str, b: str) -> Link | None:
    return state.links.get((a, b)) or state.links.get((b, a))


def _choice(
    settings: PlacementSettings,
    group: Group,
    found: list[Seat],
    context: int,
    seed: str,
    attempt: int,
    note: str,
) -> Choice:
    held = {shard.seat.key: shard for shard in group.shards}
    candidates = [_judged(seat, held.get(seat.key)) for seat in found]
    first = group.shards[0].seat.candidate
    ranks = [
        Rank(
            rank=number,
            runner_id=drawn("runner", seed, number),
            node_id=shard.seat.candidate.node_id,
            device_id=shard.seat.candidate.device_id,
            start_layer=shard.start,
            end_layer=shard.end,
            reserved_bytes=shard.reserved,
        )
        for number, shard in enumerate(group.shards)
    ]
    placement = Placement(
        attempt=attempt,
        engine=first.engine,
        dtype=first.dtype,
        strategy=group.strategy,
        context=context,
        batch=settings.batch,
        ranks=ranks,
        note=note,
    )
    if group.strategy == "expert":
        placement = expert_placement.with_experts(placement, settings)
    return Choice(placement, candidates)


def _judged(seat: Seat, shard: Shard | None) -> Candidate:
    """The candidate with its verdict; one that takes a rank of several shows what that rank needs."""
    candidate = seat.candidate
    if shard is None:
        return candidate
    if candidate.verdict == "fits" and shard.reserved == candidate.needed_bytes:
        return msgspec.structs.replace(candidate, verdict="chosen")
    reason = f"takes a rank of {gib(shard.reserved)}: layers {shard.start} to {shard.end - 1}"
    return msgspec.structs.replace(candidate, verdict="chosen", needed_bytes=shard.reserved, reasons=[reason])


def _check_settings(settings: PlacementSettings, card: ModelCard) -> None:
    if settings.batch < 1 or settings.context < 0 or settings.ranks < 0:
        raise Rejected(
            Cause(
                code="invalid_settings",
                message="batch must be at least 1, context and ranks at least 0; got batch "
                f"{settings.batch}, context {settings.context} and ranks {settings.ranks}.",
            )
        )
    expert_placement.check(card, settings)


def _does_not_fit(
    card: ModelCard, settings: PlacementSettings, candidates: list[Candidate], refusal: str
) -> DoesNotFit:
    if not candidates:
        message = f"{card.model_id} can't be placed: no node is up that has an engine and a device."
    elif any(candidate.verdict == "fits" for candidate in candidates):
        message = f"{card.model_id} can't be spread as asked for: {refusal}."
    else:
        nearest = min(candidates, key=_distance)
        message = f"{card.model_id} fits nowhere."
        if nearest.reasons:
            message += (
                f" {nearest.device_id} of {nearest.node_id} comes nearest: {'; '.join(nearest.reasons)}."
            )
        if nearest.needed_bytes > nearest.free_bytes:
            message += (
                f" Ask for a smaller context (now {context_of(card, settings)}) or batch (now "
                f"{settings.batch}), or free memory."
            )
        if refusal:
            message += f" Over several devices: {refusal}."
    detail: dict[str, str | int | float] = {
        f"{c.node_id}/{c.device_id}/{c.engine}": "; ".join(c.reasons) for c in candidates
    }
    return DoesNotFit(Cause(code="does_not_fit", message=message, detail=detail), candidates)


def _distance(candidate: Candidate) -> tuple[int, bool, int]:
    """How far a refused candidate is from fitting: one that lacks nothing but memory is nearest."""
    missing = candidate.needed_bytes - candidate.free_bytes
    return len(candidate.reasons), missing <= 0, missing


def next_attempt(instance: Instance) -> int:
    """The number of the placement that is tried next, counted from 1 since the last success."""
    return instance.attempts + 1
