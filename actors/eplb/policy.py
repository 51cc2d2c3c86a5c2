"""Policies: pure functions from a placement and a load to another placement.

`propose` is the way to ask one. What holds for every policy it sees to itself: the input fits, a layer that
would not get better stays as it is, and the busiest rank receives no more than the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from actors.eplb import greedy, metrics, movement
from actors.eplb.problem import (
    Budget,
    Counts,
    Flags,
    Loads,
    Placement,
    Proposal,
    Topology,
    check,
    check_loads,
)

LEAST_IMPROVEMENT = 1e-9
"""Part of a layer's hottest rank load that is taken for rounding."""


class Rearrange(Protocol):
    """A policy's own part. Pure; equal arguments give an equal answer, on every machine."""

    def __call__(self, placement: Placement, loads: Loads, topology: Topology, budget: Budget) -> Placement:
        """Another placement of the same shape, or the same one."""
        ...


@dataclass(frozen=True)
class Policy:
    """A policy and the version that decisions made by it are recorded with."""

    version: int
    rearrange: Rearrange


def stay(placement: Placement, loads: Loads, topology: Topology, budget: Budget) -> Placement:
    """The static policy: the placement that is there, whatever the load."""
    del loads, topology, budget
    return placement


POLICIES: dict[str, Policy] = {
    "static": Policy(1, stay),
    "greedy": Policy(greedy.VERSION, greedy.rearrange),
    "movement": Policy(movement.VERSION, movement.rearrange),
}
"""By the name that settings and events give them, see `events.experts.EplbPolicy`."""


def propose(
    policy: Policy, placement: Placement, loads: Loads, topology: Topology, budget: Budget
) -> Proposal:
    """What the policy makes of the loads: a placement whose every layer is better than now, or unchanged.

    A layer whose experts all have the same load is left alone: there is nothing to learn from it.
    Raises `Malformed` where the arguments don't fit each other.
    """
    check_loads(loads, placement)
    check(placement, loads.shape[1], topology)
    wanted = policy.rearrange(placement, loads, topology, budget)
    check(wanted, loads.shape[1], topology)
    better = _better(placement, wanted, loads, topology.ranks)
    layers = better & _affordable(placement, wanted, loads, topology.ranks, budget, better)
    return only(placement, wanted, layers, loads, topology, budget)


def only(
    old: Placement, new: Placement, layers: Flags, loads: Loads, topology: Topology, budget: Budget
) -> Proposal:
    """The proposal to change just these layers (flags, ``[L]``) from ``old`` to ``new``."""
    placement = np.where(layers[:, None], new, old)
    ranks = topology.ranks
    arriving = metrics.received(old, placement, loads.shape[1], ranks).sum(axis=0)
    return Proposal(
        placement=placement,
        now=metrics.balance(metrics.rank_loads(old, loads, ranks)),
        predicted=metrics.balance(metrics.rank_loads(placement, loads, ranks)),
        bound=metrics.bound(loads, old.shape[1], ranks),
        moved=int(arriving.sum()),
        bytes_total=int(arriving.sum()) * budget.expert_bytes,
        bytes_busiest=int(arriving.max()) * budget.expert_bytes,
    )


def saved(old: Placement, new: Placement, loads: Loads, ranks: int) -> Loads:
    """Rows by which the hottest rank of each layer gets cooler, ``[L]``."""
    before = metrics.rank_loads(old, loads, ranks).max(axis=1)
    return before - metrics.rank_loads(new, loads, ranks).max(axis=1)


def _better(old: Placement, new: Placement, loads: Loads, ranks: int) -> Flags:
    uneven = loads.max(axis=1) > loads.min(axis=1)
    hottest = metrics.rank_loads(old, loads, ranks).max(axis=1)
    return uneven & (saved(old, new, loads, ranks) > LEAST_IMPROVEMENT * hottest)


def _affordable(
    old: Placement, new: Placement, loads: Loads, ranks: int, budget: Budget, better: Flags
) -> Flags:
    """The layers that the budget pays for, those that save most rows for an expert received first."""
    if budget.max_experts is None:
        return better
    arriving = metrics.received(old, new, loads.shape[1], ranks)
    worth = saved(old, new, loads, ranks) / np.maximum(arriving.sum(axis=1), 1)
    left: Counts = np.full(ranks, budget.max_experts)
    affordable = np.zeros_like(better)
    for layer in np.argsort(-worth, kind="stable"):
        if better[layer] and (arriving[layer] <= left).all():
            left -= arriving[layer]
            affordable[layer] = True
    return affordable
