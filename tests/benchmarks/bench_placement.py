"""Placement over 1,000 nodes: milliseconds of CPU time, and the ratio to sorting 1,000 structs.

Run ``python tests/benchmarks/bench_placement.py``. Each number is the median over the rounds, which
alternate; every round weighs a device on each node, 1 in 10 of which carries an instance already. The
groups are the worst that there are: in a full mesh every node can go with every other one. Where speeds were
measured, faster groups are looked for as well: of 2, 3, 4, 6 and 8 ranks, or a pipeline where no device holds
the model.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.cards import SMALL
from support.cluster import GIB, Cluster, device, engine

from actors.placement import Choice, place
from events.values import ModelCard, PlacementSettings
from projections.state import ClusterState, Link

NODES = 1_000
FEW = 10
ROUNDS = 30
ALONE = PlacementSettings(context=2048, batch=4)
OPEN = PlacementSettings(context=512, batch=1)
SPREAD = PlacementSettings(context=2048, batch=4, ranks=4)
TENSOR = PlacementSettings(context=2048, batch=4, ranks=3, shard_strategy="tensor")


LARGE = msgspec.structs.replace(
    SMALL,
    model_id="Large-70B",
    n_layers=80,
    hidden_size=9216,
    n_heads=48,
    n_kv_heads=24,
    head_dim=192,
    ffn_size=36864,
    n_params=7 * 10**10,
)
"""More than any one node holds in float32."""
MIDDLE = msgspec.structs.replace(LARGE, model_id="Middle-3B", n_params=3 * 10**9)


def a_cluster(n_nodes: int, *, measured: bool = False) -> ClusterState:
    """Nodes of different sizes that all reach each other; every tenth carries an instance."""
    cluster = Cluster()
    for n in range(n_nodes):
        memory = (8 + n * 7 % 57) * GIB
        cluster.node(
            f"node-{n:04}",
            host=f"host-{n:04}",
            devices=[device(memory=memory)],
            engines=[engine(speed=20.0 + n % 13 if measured else 0.0)],
            memory_available=memory,
        )
        if n == 0:
            for card in (SMALL, MIDDLE, LARGE):
                cluster.model(card)
        if n % 10 == 0:
            cluster.place(node_id=f"node-{n:04}")
    names = list(cluster.state.nodes)
    for a, one in enumerate(names):
        for b in range(a):
            latency = 2e-4 * (1 + (7 * a + 3 * b) % 11)
            cluster.state.links[one, names[b]] = Link(latency_s=latency, bandwidth=1e8)
    return cluster.state


def milliseconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e3


def measure() -> dict[str, float]:
    """Milliseconds by what was done."""
    many, few, fast = a_cluster(NODES), a_cluster(FEW), a_cluster(NODES, measured=True)
    candidates = _placing(many, ALONE)().candidates
    work: dict[str, Callable[[], object]] = {
        f"sorting {NODES} structs": lambda: sorted(candidates, key=lambda each: each.free_bytes),
        f"one device of {NODES} nodes": _placing(many, ALONE),
        f"a pipeline of 4 over {NODES} nodes in a full mesh": _placing(many, SPREAD),
        f"tensors of 3 over {NODES} nodes in a full mesh": _placing(many, TENSOR),
        f"one device or a faster group of {NODES} nodes in a full mesh": _placing(fast, OPEN, MIDDLE),
        f"the fewest or a faster group of {NODES} nodes in a full mesh": _placing(fast, OPEN, LARGE),
        f"a pipeline of 4 over {FEW} nodes in a full mesh": _placing(few, SPREAD),
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, do in work.items():
            taken[name].append(milliseconds(do))
    return {name: statistics.median(times) for name, times in taken.items()}


def _placing(
    state: ClusterState, settings: PlacementSettings, card: ModelCard = SMALL
) -> Callable[[], Choice]:
    model = msgspec.structs.replace(state.models[card.model_id], paths={})
    return lambda: place(state, model, settings, seed="seed", attempt=1)


@pytest.mark.benchmark
def test_placement() -> None:
    main()


def main() -> None:
    """Print what was measured."""
    measured = measure()
    bare, *_ = measured.values()
    print("aim: under 50 ms over 1,000 nodes, and 10 in a full mesh no slower")
    for name, taken in measured.items():
        print(f"{name}: {taken:.2f} ms, {taken / bare:.0f} times the sort")


if __name__ == "__main__":
    main()
