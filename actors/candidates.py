"""The devices that may carry an instance: each with what the model needs on it and what is free.

One pass over the devices of the nodes that are up. What `actors.placement` chooses from.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from actors.sharding import ACTIVATION_SHARE, PROCESS_BYTES, Seat
from engines.attention import KEEPS_ALL, attention_refusal
from engines.experts.refusals import refusal as experts_refusal
from engines.experts.refusals import wish_of
from events.values import Candidate, Device, Dtype, EngineReport, ModelCard, Placement, PlacementSettings
from projections.state import ClusterState, Instance, Model, Node

_PLAIN_WEIGHTS = frozenset({"torch"})
"""Engines that read weights in floating point alone."""
_OWN_MEMORY = frozenset({"cuda", "npu"})
"""Kinds of device with memory of their own; all others compute in their node's."""
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def weights_in_memory(card: ModelCard, dtype: Dtype) -> int:
    """Bytes of the weights once loaded: quantized weights as they are, others in ``dtype``."""
    if card.quantization is not None or not card.n_params:
        return card.weight_bytes
    return card.n_params * DTYPE_BYTES[dtype]


def kv_bytes_per_token(card: ModelCard, dtype: Dtype) -> int:
    """Bytes that one token of one sequence takes in the key and value caches of all layers."""
    return 2 * card.n_layers * card.n_kv_heads * card.head_dim * DTYPE_BYTES[dtype]


def seats(state: ClusterState, model: Model, settings: PlacementSettings, context: int) -> list[Seat]:
    """Every device of every node that is up, with each engine that it may be used with.

    ``context`` is the tokens of one sequence. The numbers are those of the whole model on one device.
    """
    reserved = _reservations(state)
    return [
        Seat(
            _weigh(model, settings, context, node, device, engine, reserved),
            device.kind,
            None if device.kind in _OWN_MEMORY else _node_free(node, reserved),
            tuple(engine.strategies),
            engine.speed,
            node.host or node.node_id,
        )
        for node in state.nodes.values()
        if node.up
        for device in node.devices
        for engine in _engines(node, device)
    ]


def gib(n_bytes: int) -> str:
    """Bytes as refusals give them, e.g. ``1.25 GiB``."""
    return f"{n_bytes / 1024**3:.2f} GiB"


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


class _Reserved(NamedTuple):
    """Bytes promised: in all on each device, and of each node's memory to what may not have taken it yet."""

    on_device: Counter[tuple[str, str]]
    untaken: Counter[str]


def overcommitted(state: ClusterState, instance: Instance, placement: Placement) -> str:
    """Why devices can't keep what runs as ``placement`` beside all other instances; empty where they can.

    It runs, so the readings have it already: what counts is what is promised.
    """
    promised = _reservations(state, besides=instance.instance_id).on_device
    own = Counter[tuple[str, str]]()
    for rank in placement.ranks:
        own[rank.node_id, rank.device_id] += rank.reserved_bytes
    for (node_id, device_id), held in own.items():
        devices = state.nodes[node_id].devices
        memory = next((memory_of(each) for each in devices if each.device_id == device_id), 0)
        others = promised[node_id, device_id]
        if held + others > memory:
            return (
                f"{device_id} of {node_id} has {gib(memory)}, of which others have {gib(others)} by now, and "
                f"they hold {gib(held)}"
            )
    return ""


def _reservations(state: ClusterState, besides: str = "") -> _Reserved:
    """Of all instances but one."""
    reserved = _Reserved(Counter(), Counter())
    for instance in state.instances.values():
        if instance.instance_id == besides:
            continue
        for rank in instance.placement.ranks if instance.placement else ():
            reserved.on_device[rank.node_id, rank.device_id] += rank.reserved_bytes
            if instance.status != "ready" and rank.device_id.partition(":")[0] not in _OWN_MEMORY:
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
    reasons = _refusals(model.card, settings, context, node, device, engine)
    if needed > free:
        reasons.append(
            f"needs {gib(needed)} (weights {gib(weights)} as {dtype}, KV cache {gib(kv)} for "
            f"{settings.batch} x {context} tokens, overhead {gib(overhead)}) and {gib(free)} are free"
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

    A node's reading is renewed: a loaded instance shows in it, so only those still loading are taken off it,
    whichever of its devices they load on. That of a device with memory of its own is from the node's start,
    before any instance: all promises are taken off it, and the node's memory does not count.
    """
    promised = reserved.on_device[node.node_id, device.device_id]
    if device.kind in _OWN_MEMORY:
        return max(0, memory_of(device) - promised)
    return max(0, min(memory_of(device) - promised, _node_free(node, reserved)))


def memory_of(device: Device) -> int:
    """Bytes that all instances together may take on a device."""
    return device.memory_bytes if device.memory_free is None else min(device.memory_bytes, device.memory_free)


def _node_free(node: Node, reserved: _Reserved) -> int:
    """What the node's reading leaves to all its devices together."""
    return max(0, node.memory_available - reserved.untaken[node.node_id])


def _refusals(
    card: ModelCard,
    settings: PlacementSettings,
    context: int,
    node: Node,
    device: Device,
    engine: EngineReport,
) -> list[str]:
    reasons: list[str] = []
    if engine is _NO_ENGINE:
        reasons.append(engine.detail)
    elif not engine.ok:
        reasons.append(f"engine {engine.engine} failed its self-test: {engine.detail}")
    if card.quantization is not None and engine.engine in _PLAIN_WEIGHTS:
        reasons.append(f"engine {engine.engine} does not read quantized weights")
    if engine.engine in KEEPS_ALL and (refusal := attention_refusal(card, context)):
        reasons.append(refusal)
    if settings.engine and settings.engine != engine.engine:
        reasons.append(f"engine {settings.engine} was asked for")
    if settings.node_id and settings.node_id != node.node_id:
        reasons.append(f"node {settings.node_id} was asked for")
    if settings.device_id and settings.device_id != device.device_id:
        reasons.append(f"device {settings.device_id} was asked for")
    if settings.shard_strategy == "expert":
        reasons += _no_experts(card, settings, device, engine)
    return reasons


def _no_experts(
    card: ModelCard, settings: PlacementSettings, device: Device, engine: EngineReport
) -> list[str]:
    """Why no rank of an expert-parallel group can be here; nothing where one can."""
    if engine.ok and "expert" not in engine.strategies:
        return [f"engine {engine.engine} can't spread experts"]
    cause = experts_refusal(wish_of(card, settings, settings.ranks, device.kind))
    return [cause.message.rstrip(".")] if cause else []
