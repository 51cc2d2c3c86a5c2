"""Policies over drifting loads: what each would have made of them, and at what cost."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median

from support.drift import Drift, Shape, fitting, windows

from actors.eplb.gate import Window
from actors.eplb.policy import POLICIES
from actors.eplb.problem import Budget
from actors.eplb.what_if import Logged, Step, mean_balance, what_if

EXPERT = Budget(expert_bytes=44_040_192)
"""An expert of DeepSeek-V3 in 8 bits: three matrices of 7168 by 2048."""
_UNASKED = Window(tokens=1, seconds=1, row_s=1, bandwidth=1)


@dataclass(frozen=True)
class Run:
    """One policy over the windows: means by decision."""

    balance: float
    """That windows saw under the placement decided before them."""
    moved: float
    bytes_total: float
    bytes_busiest: float
    milliseconds: float
    """Median of a decision."""


def run(policy: str, shape: Shape, drift: Drift, n: int, seed: int = 1) -> Run:
    """The policy without a gate, from the placement that is right for the first window."""
    logged = [Logged(loads, _UNASKED) for loads in windows(shape, drift, n, seed)]
    start = fitting(shape, logged[0].loads)
    taken: list[float] = []
    steps = list(_timed(what_if(logged, start, POLICIES[policy], shape.topology, EXPERT), taken))
    decided = steps[:-1]
    return Run(
        balance=mean_balance(steps),
        moved=fmean(step.moved for step in decided),
        bytes_total=fmean(step.bytes_total for step in decided),
        bytes_busiest=fmean(step.bytes_busiest for step in decided),
        milliseconds=1e3 * median(taken),
    )


def _timed(steps: Iterable[Step], taken: list[float]) -> Iterable[Step]:
    begin = time.process_time()
    for step in steps:
        taken.append(time.process_time() - begin)
        yield step
        begin = time.process_time()


def kept(static: Run, greedy: Run, other: Run) -> float:
    """Share of greedy's gain over static that the other policy has."""
    return (other.balance - static.balance) / (greedy.balance - static.balance)
