"""Small problems of expert placement, for hypothesis, and the answer that trying everything finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from hypothesis import strategies as st

from actors.eplb import metrics
from actors.eplb.problem import Loads, Placement, Topology


@dataclass(frozen=True)
class Problem:
    placement: Placement
    loads: Loads
    topology: Topology

    @property
    def experts(self) -> int:
        return self.loads.shape[1]


@st.composite
def problems(draw: st.DrawFn, most_layers: int = 3, most_ranks: int = 5, most_slots: int = 5) -> Problem:
    """Any placement of every expert, and any whole loads; nodes come in one piece each."""
    ranks, size = draw(st.integers(1, most_ranks)), draw(st.integers(1, most_slots))
    experts = draw(st.integers(1, ranks * size))
    layers = draw(st.integers(1, most_layers))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    placement = np.stack([_anywhere(rng, experts, ranks * size) for _ in range(layers)])
    spread = draw(st.sampled_from([0.0, 0.3, 1.0, 3.0]))
    loads = np.floor(100 * rng.lognormal(0, spread, (layers, experts)))
    if draw(st.booleans()):
        loads[rng.random(loads.shape) < 0.3] = 0
    nodes = sorted(rng.integers(0, draw(st.integers(1, 3)), ranks).tolist())
    groups = draw(st.sampled_from([each for each in (1, 2, 3) if experts % each == 0]))
    return Problem(placement, loads, Topology(tuple(nodes), groups))


def _anywhere(rng: np.random.Generator, experts: int, slots: int) -> Placement:
    extra = rng.integers(0, experts, slots - experts)
    return rng.permutation(np.concatenate([np.arange(experts), extra])).astype(np.int32)


def doubles(placement: Placement, ranks: int) -> int:
    """Slots that hold an expert which their rank has in another slot already."""
    inside = np.sort(placement.reshape(len(placement), ranks, -1), axis=2)
    return int((inside[:, :, 1:] == inside[:, :, :-1]).sum())


def coolest(loads: Loads, slots: int, ranks: int) -> float:
    """The least that the hottest rank of one layer ``[E]`` can have, by trying every placement."""
    return min(
        float(metrics.rank_loads(each[None], loads[None], ranks).max()) for each in _all(len(loads), slots)
    )


def _all(experts: int, slots: int) -> Iterator[Placement]:
    seen: set[tuple[int, ...]] = set()
    for extra in _extras(experts, slots - experts):
        for order in permutations([*range(experts), *extra]):
            if order not in seen:
                seen.add(order)
                yield np.array(order, np.int32)


def _extras(experts: int, n: int) -> Iterator[list[int]]:
    if n == 0:
        yield []
        return
    for head in range(experts):
        for rest in _extras(experts, n - 1):
            if not rest or head <= rest[0]:
                yield [head, *rest]
