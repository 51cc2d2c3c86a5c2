"""Placement: which device carries an instance, as a pure function of state with its reasons.

Every device of every node that is up is a candidate; each gets its numbers and a verdict, and all of them
go into the decision. The work is one pass over the devices and one sort: O(n log n).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from actors.refusal import Rejected
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
PROCESS_BYTES = 384 * 1024**2
"""Memory of a runner process beside its weights and caches: interpreter, libraries, tokenizer."""
ACTIVATION_SHARE = 20
"""One part in 20 of the weights for activations and the allocator's slack."""

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
) -> Choice:
    """Choose a device for ``model``. Runner ids are drawn from ``seed``.

    Raises `DoesNotFit` (a `Rejected`) with every candidate where none can carry it.
    """
    context = context_of(model.card, settings)
    _check_settings(settings)
    reserved = _reservations(state)
    rows = [
        (_weigh(model, settings, context, node, device, engine, reserved), device.kind)
        for node in state.nodes.values()
        if node.up
        for device in node.devices
        for engine in _engines(node, device)
    ]
    fitting = sorted((row for row in rows if row[0].verdict == "fits"), key=lambda row: prefer(*row))
    if not fitting:
        raise _does_not_fit(model.card, settings, [candidate for candidate, _ in rows])
    best = fitting[0][0]
    chosen = msgspec.structs.replace(best, verdict="chosen")
    candidates = [chosen if candidate is best else candidate for candidate, _ in rows]
    return Choice(_placement(model.card, settings, chosen, context, seed, attempt), candidates)


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
    if settings.batch < 1 or settings.context < 0:
        raise Rejected(
            Cause(
                code="invalid_settings",
                message=f"batch must be at least 1 and context at least 0; got batch {settings.batch} and "
                f"context {settings.context}.",
            )
        )


def _placement(
    card: ModelCard,
    settings: PlacementSettings,
    chosen: Candidate,
    context: int,
    seed: str,
    attempt: int,
) -> Placement:
    rank = Rank(
        rank=0,
        runner_id=drawn("runner", seed, 0),
        node_id=chosen.node_id,
        device_id=chosen.device_id,
        start_layer=0,
        end_layer=card.n_layers,
        reserved_bytes=chosen.needed_bytes,
    )
    return Placement(
        attempt=attempt,
        engine=chosen.engine,
        dtype=chosen.dtype,
        strategy=settings.shard_strategy,
        context=context,
        batch=settings.batch,
        ranks=[rank],
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
    by_reading = node.memory_available - reserved.untaken[node.node_id]
    return max(0, min(by_promise, by_reading))


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


def _does_not_fit(card: ModelCard, settings: PlacementSettings, candidates: list[Candidate]) -> DoesNotFit:
    if not candidates:
        message = f"{card.model_id} can't be placed: no node is up that has an engine and a device."
    else:
        nearest = min(candidates, key=_distance)
        message = (
            f"{card.model_id} fits nowhere. {nearest.device_id} of {nearest.node_id} comes nearest: "
            f"{'; '.join(nearest.reasons)}."
        )
        if nearest.needed_bytes > nearest.free_bytes:
            message += (
                f" Ask for a smaller context (now {context_of(card, settings)}) or batch (now "
                f"{settings.batch}), or free memory."
            )
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
