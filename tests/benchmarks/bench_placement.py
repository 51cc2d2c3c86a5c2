"""Placement over 1,000 nodes: milliseconds, and the ratio to sorting 1,000 structs in the same run.

Run ``python tests/benchmarks/bench_placement.py``. Each number is the median over the rounds, which
alternate; every round weighs a device on each of 1,000 nodes, 100 of which carry an instance already.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.cards import SMALL
from support.cluster import GIB, Cluster, device

from actors.placement import place
from events.values import PlacementSettings

NODES = 1_000
ROUNDS = 30
WANTED = PlacementSettings(context=2048, batch=4)


def a_large_cluster() -> Cluster:
    """Nodes of different sizes; every tenth carries an instance."""
    cluster = Cluster()
    for n in range(NODES):
        memory = (8 + n * 7 % 57) * GIB
        cluster.node(f"node-{n:04}", devices=[device(memory=memory)], memory_available=memory)
        if n == 0:
            cluster.model()
        if n % 10 == 0:
            cluster.place(node_id=f"node-{n:04}")
    return cluster


def milliseconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def measure() -> tuple[float, float]:
    """Milliseconds of a placement and of a bare sort of 1,000 structs."""
    state = a_large_cluster().state
    model = state.models[SMALL.model_id]
    candidates = place(state, model, WANTED, seed="seed", attempt=1).candidates
    placements: list[float] = []
    sorts: list[float] = []
    for _ in range(ROUNDS):
        placements.append(milliseconds(lambda: place(state, model, WANTED, seed="seed", attempt=1)))
        sorts.append(milliseconds(lambda: sorted(candidates, key=lambda each: each.free_bytes)))
    return statistics.median(placements), statistics.median(sorts)


@pytest.mark.benchmark
def test_placement() -> None:
    main()


def main() -> None:
    """Print what was measured."""
    placement, bare = measure()
    print(f"placement over {NODES} nodes: {placement:.2f} ms (aim: under 50 ms)")
    print(f"ratio to sorting {NODES} structs ({bare:.3f} ms): {placement / bare:.0f}")


if __name__ == "__main__":
    main()
