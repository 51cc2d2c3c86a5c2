"""Placement: which device carries an instance, as a pure function of state with its reasons.

Every device of every node that is up is a candidate; each gets its numbers and a verdict, and all of them
go into the decision. The work is one pass over the devices and one sort: O(n log n).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from actors.refusal import Rejected
from actors.sharding import ACTIVATION_SHARE, PROCESS_BYTES, Group, Need, Seat, Shard, form_group
from events.ids import drawn
from events.values import (
    Candidate,
    Cause,
    Device,
    Dtype,
    EngineReport,
    ModelCard,
    Placement,
    PlacementSettings,
    Rank,
)
from projections.state import ClusterState, Instance, Model, Node

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
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


def weights_in_memory(card: ModelCard, dtype: Dtype) -> int:
    """Bytes of the weights once loaded: quantized weights as they are, others in ``dtype``."""
    if card.quantization is not None or not card.n_params:
        return card.weight_bytes
    return card.n_params * DTYPE_BYTES[dtype]


def kv_bytes_per_token(card: ModelCard, dtype: Dtype) -> int:
    """Bytes that one token of one sequence takes in the key and value caches of all layers."""
    return 2 * card.n_layers * card.n_kv_heads * card.head_dim * DTYPE_BYTES[dtype]


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

    One device where one is enough and no more are asked for, else the group that `actors.sharding` forms.
    With ``degrade`` fewer ranks than asked for will do, and the placement's note says so.

    Raises `DoesNotFit` (a `Rejected`) with every candidate where nothing can carry it.
    """
    context = context_of(model.card, settings)
    _check_settings(settings)
    reserved = _reservations(state)
    seats = [
        Seat(
            _weigh(model, settings, context, node, device, engine, reserved),
            device.kind,
            _node_free(node, reserved),
        )
        for node in state.nodes.values()
        if node.up
        for device in node.devices
        for engine in _engines(node, device)
    ]
    wanted = settings.ranks
    refusal = ""
    for ranks in range(wanted, 0, -1) if degrade and wanted > 1 else [wanted]:
        group = _group(state, model.card, settings, context, seats, ranks, prefer)
        if isinstance(group, Group):
            note = f"{wanted} ranks were asked for: {refusal}" if ranks != wanted else ""
            return _choice(settings, group, seats, context, seed, attempt, note)
        refusal = refusal or group
    raise _does_not_fit(model.card, settings, [seat.candidate for seat in seats], refusal)


def _group(
    state: ClusterState,
    card: ModelCard,
    settings: PlacementSettings,
    context: int,
    seats: list[Seat],
    ranks: int,
    prefer: Preference,
) -> Group | str:
    """One device, or a group of ``ranks`` (0: as few as possible); or why there is none."""
    fits = (seat for seat in seats if seat.candidate.verdict == "fits")
    fitting = sorted(fits, key=lambda seat: prefer(seat.candidate, seat.kind))
    if ranks <= 1 and fitting:
        shard = Shard(fitting[0], 0, card.n_layers, fitting[0].candidate.needed_bytes)
        return Group(settings.shard_strategy, [shard])
    if ranks == 1:
        return "no single device holds it"
    usable = [seat for seat in seats if not _barred(seat.candidate)]
    if len(usable) < 2:
        return "" if ranks == 0 else f"{ranks} ranks need as many devices, and {len(usable)} may be used"
    need = partial(_need, card, context * settings.batch)
    return form_group(need, usable, partial(_latency, state), settings.shard_strategy, ranks)


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
    link = state.links.get((a, b)) or state.links.get((b, a))
    return link.latency_s if link else None


def _choice(
    settings: PlacementSettings,
    group: Group,
    seats: list[Seat],
    context: int,
    seed: str,
    attempt: int,
    note: str,
) -> Choice:
    held = {shard.seat.key: shard for shard in group.shards}
    candidates = [_judged(seat, held.get(seat.key)) for seat in seats]
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
    return Choice(placement, candidates)


def _judged(seat: Seat, shard: Shard | None) -> Candidate:
    """The candidate with its verdict; one that takes a rank of several shows what that rank needs."""
    candidate = seat.candidate
    if shard is None:
        return candidate
    if candidate.verdict == "fits" and shard.reserved == candidate.needed_bytes:
        return msgspec.structs.replace(candidate, verdict="chosen")
    reason = f"takes a rank of {_gib(shard.reserved)}: layers {shard.start} to {shard.end - 1}"
    return msgspec.structs.replace(candidate, verdict="chosen", needed_bytes=shard.reserved, reasons=[reason])


_NO_ENGINE = EngineReport(
    engine="no engine",
    version="",
    ok=False,
    detail="no engine of this node computes on it",
    device_ids=[],
    dtype="float32",
)


def _engines(node: Node, device: Device) -> list[EngineReport]:
    """The engines to weigh for a device: those that compute on it, and those that might if they were well."""
    found = [engine for engine in node.engines if device.device_id in engine.device_ids or not engine.ok]
    return found or [_NO_ENGINE]


def _check_settings(settings: PlacementSettings) -> None:
    if settings.batch < 1 or settings.context < 0 or settings.ranks < 0:
        raise Rejected(
            Cause(
                code="invalid_settings",
                message="batch must be at least 1, context and ranks at least 0; got batch "
                f"{settings.batch}, context {settings.context} and ranks {settings.ranks}.",
            )
        )


class _Reserved(NamedTuple):
    """Bytes promised: in all on each device, and on each node by instances that may not have taken theirs."""

    on_device: Counter[tuple[str, str]]
    untaken: Counter[str]


def _reservations(state: ClusterState) -> _Reserved:
    reserved = _Reserved(Counter(), Counter())
    for instance in state.instances.values():
        for rank in instance.placement.ranks if instance.placement else ():
            reserved.on_device[rank.node_id, rank.device_id] += rank.reserved_bytes
            if instance.status != "ready":
                reserved.untaken[rank.node_id] += rank.reserved_bytes
    return reserved


def _weigh(
    model: Model,
    settings: PlacementSettings,
    context: int,
    node: Node,
    device: Device,
    engine: EngineReport,
    reserved: _Reserved,
) -> Candidate:
    dtype: Dtype = settings.dtype or engine.dtype
    weights = weights_in_memory(model.card, dtype)
    kv = kv_bytes_per_token(model.card, dtype) * context * settings.batch
    overhead = PROCESS_BYTES + weights // ACTIVATION_SHARE
    needed = weights + kv + overhead
    free = _free_bytes(node, device, reserved)
    reasons = list(_refusals(settings, node, device, engine))
    if needed > free:
        reasons.append(
            f"needs {_gib(needed)} (weights {_gib(weights)} as {dtype}, KV cache {_gib(kv)} for "
            f"{settings.batch} x {context} tokens, overhead {_gib(overhead)}) and {_gib(free)} are free"
        )
    return Candidate(
        node_id=node.node_id,
        device_id=device.device_id,
        engine=engine.engine,
        dtype=dtype,
        weights_bytes=weights,
        kv_bytes=kv,
        overhead_bytes=overhead,
        needed_bytes=needed,
        free_bytes=free,
        has_files=node.node_id in model.paths,
        verdict="refused" if reasons else "fits",
        reasons=reasons,
    )


def _free_bytes(node: Node, device: Device, reserved: _Reserved) -> int:
    """Free by promise (all of the memory less what is reserved) and by reading, whichever is less.

    A loaded instance shows in the reading, so only those still loading are taken off it, whichever of the
    node's devices they load on: the reading is the node's.
    """
    by_promise = device.memory_bytes - reserved.on_device[node.node_id, device.device_id]
    return max(0, min(by_promise, _node_free(node, reserved)))


def _node_free(node: Node, reserved: _Reserved) -> int:
    """What the node's reading leaves to all its devices together."""
    return max(0, node.memory_available - reserved.untaken[node.node_id])


def _refusals(settings: PlacementSettings, node: Node, device: Device, engine: EngineReport) -> list[str]:
    reasons: list[str] = []
    if engine is _NO_ENGINE:
        reasons.append(engine.detail)
    elif not engine.ok:
        reasons.append(f"engine {engine.engine} failed its self-test: {engine.detail}")
    if settings.engine and settings.engine != engine.engine:
        reasons.append(f"engine {settings.engine} was asked for")
    if settings.node_id and settings.node_id != node.node_id:
        reasons.append(f"node {settings.node_id} was asked for")
    if settings.device_id and settings.device_id != device.device_id:
        reasons.append(f"device {settings.device_id} was asked for")
    return reasons


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


def _gib(size: int) -> str:
    return f"{size / 1024**3:.2f} GiB"


def next_attempt(instance: Instance) -> int:
    """The number of the placement that is tried next, counted from 1 since the last success."""
    return instance.attempts + 1
