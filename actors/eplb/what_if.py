"""What another policy would have done with the windows that the log has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from actors.eplb import metrics
from actors.eplb.gate import Gate, Verdict, Window, judge
from actors.eplb.policy import Policy, propose
from actors.eplb.problem import Budget, Loads, Placement, Topology


@dataclass(frozen=True)
class Logged:
    """A window of the log. Loads of logical experts belong to no epoch: any placement can be tried."""

    loads: Loads
    """``[L, E]``"""
    window: Window


@dataclass(frozen=True)
class Step:
    """One window under the policy: what it saw under the placement decided before it, and what came of it."""

    balance: float
    """Of this window, under a placement that knew only those before it."""
    moved: int
    """Experts that the decision after this window moves."""
    bytes_total: int
    bytes_busiest: int
    verdict: Verdict | None
    """The gate's; None where every proposal was adopted."""
    placement: Placement
    """What the next window sees."""


def what_if(
    windows: Iterable[Logged],
    start: Placement,
    policy: Policy,
    topology: Topology,
    budget: Budget,
    gate: Gate | None = None,
) -> Iterator[Step]:
    """What the policy does, window by window, from ``start``. Without a gate every proposal is adopted.

    The loads are taken as they were: a better placement would have served more tokens in the same time.
    Raises `Malformed` where a window does not fit the placement.
    """
    placement = start
    for logged in windows:
        by_rank = metrics.rank_loads(placement, logged.loads, topology.ranks)
        proposal = propose(policy, placement, logged.loads, topology, budget)
        verdict = None
        if gate is not None:
            verdict = judge(
                placement, proposal, logged.loads, topology, budget, gate=gate, window=logged.window
            )
            proposal = verdict.proposal
        adopted = verdict is None or verdict.adopted
        placement = proposal.placement if adopted else placement
        yield Step(
            balance=metrics.balance(by_rank),
            moved=proposal.moved if adopted else 0,
            bytes_total=proposal.bytes_total if adopted else 0,
            bytes_busiest=proposal.bytes_busiest if adopted else 0,
            verdict=verdict,
            placement=placement,
        )


def mean_balance(steps: Iterable[Step]) -> float:
    """Balance over all windows but the first, which no decision came before."""
    return float(np.mean([step.balance for step in steps][1:]))
