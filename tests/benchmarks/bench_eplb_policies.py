"""Placement policies over drifting expert loads: balance, bytes, and milliseconds of CPU time by decision.

Run ``python tests/benchmarks/bench_eplb_policies.py [windows]``. Every decision knows the windows so far, and
the balance is that of the window after it. Aims for ``movement``: 0.98 of greedy's gain over static for a
tenth of its bytes, 100 ms by decision at 58/256/288 on 32 ranks, and next to no moves where nothing drifts.
The last table is that of loads without skew or change, where nothing at all may move.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.balancing import EXPERT, Run, kept, run
from support.drift import Drift, Shape, fitting, windows

from actors.eplb.policy import POLICIES, propose

GB = 1e9
BIG = Shape(58, 256, 288, 32)
CASES = [
    (Shape(58, 256, 288, 8), Drift()),
    (BIG, Drift()),
    (Shape(58, 256, 288, 144), Drift()),
    (Shape(94, 128, 144, 16), Drift()),
    (Shape(48, 128, 160, 8), Drift()),
    (BIG, Drift(retention=0.99)),
    (BIG, Drift(retention=0.8)),
    (BIG, Drift(zipf=0.6)),
    (BIG, Drift(retention=1)),
]


def report(shape: Shape, drift: Drift, n: int) -> None:
    """Print a line for each policy."""
    runs = {name: run(name, shape, drift, n) for name in POLICIES}
    print(f"\n{shape}, {drift}, {n} windows")
    for name, each in runs.items():
        print(f"  {name:9} {_line(each, runs, drift)}")


def _line(each: Run, runs: dict[str, Run], drift: Drift) -> str:
    static, greedy = runs["static"], runs["greedy"]
    gain = f"{kept(static, greedy, each):6.3f} of the gain" if drift.retention < 1 else ""
    return (
        f"balance {each.balance:.4f} {gain}  {each.moved:7.0f} moved, {each.bytes_total / GB:6.1f} GB "
        f"({each.bytes_total / greedy.bytes_total:.3f}), busiest rank {each.bytes_busiest / GB:5.2f} GB, "
        f"{each.milliseconds:5.1f} ms ({each.milliseconds / greedy.milliseconds:.2f})"
    )


def moves_for_nothing(name: str) -> list[int]:
    """Experts that a policy moves under constant, uniform and zero load."""
    first, second = windows(BIG, Drift(), 2)
    topology, policy = BIG.topology, POLICIES[name]
    settled = propose(policy, fitting(BIG, first), second, topology, EXPERT).placement
    loads = [second, np.full_like(second, 7), np.zeros_like(second)]
    return [propose(policy, settled, each, topology, EXPERT).moved for each in loads]


@pytest.mark.benchmark
def test_policies() -> None:
    main(4)


def main(n: int = 51) -> None:
    """Print what was measured."""
    print("means by decision; in brackets the ratio to greedy in the same run")
    for shape, drift in CASES:
        report(shape, drift, n)
    print("\nmoved under constant, uniform and zero load:")
    for name in POLICIES:
        print(f"  {name:9} {moves_for_nothing(name)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
