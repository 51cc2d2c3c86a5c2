"""How long a group takes for a decode step, predicted from what engines and links have measured.

A step is one token of one sequence. Engines measure the same work (`engines.speed`): some layers of a small
transformer. A model's layer counts as many of those as its weights weigh more, because a step on a CPU takes
as long as its weights take to read. On an accelerator the work is too small for that: its time is that of
starting kernels, of which any layer has as many, whole or shared. So a layer counts as one there, and a group
of accelerators is not taken to compute a layer faster than one does.

pipeline  the layers of all ranks, one after another, the output layer on rank 0; the hidden state goes over
          each boundary between ranks, and as often again on its way back to rank 0 (an all-gather)
tensor    the slowest rank's share of every layer, the whole output layer; two all-reduces for each layer and
          one for the tokens, each 2 (n - 1) hops around a ring whose slowest link sets the pace

The CPU devices of a machine, be they of one node or of several, share its cores and its memory's bandwidth:
what was measured there was measured with all of it, so n ranks that compute at once take n times as long. A
hop takes half of a link's round trip and the time that its bandwidth gives; on a node itself, none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from actors.candidates import DTYPE_BYTES
from actors.sharding import Group, Need, Seat
from engines import speed
from events.values import Dtype
from projections.state import Link

DECODE_SHARE = 1.5
"""Seconds of a decode step of the work, times its tokens per second.

It was 1.5 to 4.2 on CPUs, with MLX and torch. The least: the less there is to compute, the less is there to
gain by a group, and a group has to be clearly faster.
"""

Ways = Callable[[str, str], Link | None]
"""What was measured between two nodes; None where nothing was."""


class Load(NamedTuple):
    """A step of a model: its layers, a layer and the output layer in layers of the work, a hidden state."""

    layers: int
    layer: float
    output: float
    state_bytes: int


def load_of(need: Need, dtype: Dtype) -> Load:
    """The step of a dense model whose weights are in memory as ``need`` says."""
    unit = speed.LAYER_PARAMS * DTYPE_BYTES[dtype]
    layers = need.card.n_layers
    state = need.card.hidden_size * DTYPE_BYTES[dtype]
    return Load(layers, (need.weights - need.edges) / layers / unit, need.edges / 2 / unit, state)


def predicted(group: Group, load: Load, ways: Ways) -> float | None:
    """Seconds of a step; None where an engine's speed or a link between neighbours was not measured."""
    seats = [shard.seat for shard in group.shards]
    if not all(seat.speed > 0 for seat in seats):
        return None
    tensor = group.strategy == "tensor" and len(seats) > 1
    hops = _hops(seats, load.state_bytes / len(seats) if tensor else load.state_bytes, ways)
    if hops is None:
        return None
    output = _seconds(seats[0], load.output)
    around = len(seats) - 1
    if tensor:
        layer = max(
            share * _seconds(seat, load.layer) for seat, share in zip(seats, _shares(seats), strict=True)
        )
        return load.layers * layer + output + (2 * load.layers + 1) * 2 * around * max(hops)
    computed = sum((shard.end - shard.start) * _seconds(shard.seat, load.layer) for shard in group.shards)
    return computed + output + sum(hops[:around]) + around * max(hops, default=0.0)


def _seconds(seat: Seat, layers: float) -> float:
    """So many layers of the work, all in one piece."""
    pieces = layers if seat.kind == "cpu" else 1.0
    return pieces * DECODE_SHARE / seat.speed / speed.LAYERS


def _shares(seats: list[Seat]) -> list[float]:
    """What of a whole layer's time each rank takes for its part of it, with what else computes beside it."""
    on_machine = Counter(seat.host for seat in seats if seat.kind == "cpu")
    return [on_machine[seat.host] / len(seats) if seat.kind == "cpu" else 1.0 for seat in seats]


def _hops(seats: list[Seat], n_bytes: float, ways: Ways) -> list[float] | None:
    """Seconds from each rank to the next, the last one to the first; none for a rank alone."""
    nodes = [seat.candidate.node_id for seat in seats]
    found: list[float] = []
    for here, there in zip(nodes, nodes[1:] + nodes[:1], strict=True) if len(nodes) > 1 else ():
        link = None if here == there else ways(here, there)
        if link is not None and link.bandwidth > 0:
            found.append(link.latency_s / 2 + n_bytes / link.bandwidth)
        elif here == there:
            found.append(0.0)
        else:
            return None
    return found
