"""The gate: a proposal is adopted where it saves more time than it costs, layer by layer.

A layer takes as long as its hottest rank. What a cooler one saves is counted over the horizon; what the move
costs is the time in which the busiest rank receives its experts, and a fixed time for each layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actors.eplb import metrics
from actors.eplb.policy import only, saved
from actors.eplb.problem import Budget, Flags, Loads, Placement, Proposal, Topology

LAYER_S = 0.01
"""Seconds that staging, committing and applying a layer cost, whatever is in it."""
NEAR_BOUND = 0.98
"""Part of the bound at which a balance is as good as it gets. The bound is 1 only where slots allow it."""


@dataclass(frozen=True)
class Gate:
    """What the user asks of a move."""

    min_tokens: int = 256
    """Tokens that the window must have seen."""
    horizon_s: float = 600.0
    """Seconds of serving in which a move must pay for itself."""
    near_bound: float = NEAR_BOUND


@dataclass(frozen=True)
class Window:
    """What the gate must know about the window that the proposal was made for."""

    tokens: int
    seconds: float
    """Time in which the loads came about."""
    row_s: float
    """Seconds that one row more on the hottest rank takes, see `row_seconds`."""
    bandwidth: float
    """Bytes per second in which a rank receives experts; 0 where that is not known."""
    layer_s: float = LAYER_S


@dataclass(frozen=True)
class Verdict:
    """Whether to move, and why."""

    adopted: bool
    reason: str
    proposal: Proposal
    """What is left of the proposal: only layers that pay. Where not adopted, that of the policy."""
    layers: int
    """Layers that it changes."""
    saving_s: float
    cost_s: float


def row_seconds(by_rank: Loads, seconds: float) -> float:
    """Seconds a row of the hottest ranks ``[L, R]``, where a window of ``seconds`` did nothing else.

    An upper bound: attention and the rest of a step take their part of the time, too.
    """
    rows = float(by_rank.max(axis=1).sum())
    return seconds / rows if rows > 0 else 0.0


def judge(
    old: Placement,
    proposal: Proposal,
    loads: Loads,
    topology: Topology,
    budget: Budget,
    *,
    gate: Gate,
    window: Window,
) -> Verdict:
    """Adopt the layers of the proposal that pay, or none, with the reason and the numbers behind it."""
    reason = _unfit(proposal, gate, window)
    saving = _saving(old, proposal, loads, topology, gate, window)
    cost = _cost(old, proposal, loads, topology, budget, window)
    changed = (old != proposal.placement).any(axis=1)
    paying = changed & (saving > cost)
    if reason or not paying.any():
        reason = reason or _dear(proposal, gate, saving[changed].sum(), cost[changed].sum())
        return _verdict(False, reason, proposal, changed, saving, cost)
    pruned = only(old, proposal.placement, paying, loads, topology, budget)
    reason = _worth(pruned, gate, paying, changed, saving[paying].sum(), cost[paying].sum())
    return _verdict(True, reason, pruned, paying, saving, cost)


def _verdict(
    adopted: bool, reason: str, proposal: Proposal, layers: Flags, saving: Loads, cost: Loads
) -> Verdict:
    return Verdict(
        adopted=adopted,
        reason=reason,
        proposal=proposal,
        layers=int(layers.sum()),
        saving_s=float(saving[layers].sum()),
        cost_s=float(cost[layers].sum()),
    )


def _saving(
    old: Placement, proposal: Proposal, loads: Loads, topology: Topology, gate: Gate, window: Window
) -> Loads:
    """Seconds that each layer saves over the horizon, ``[L]``."""
    per_second = saved(old, proposal.placement, loads, topology.ranks) / max(window.seconds, 1e-9)
    return per_second * window.row_s * gate.horizon_s


def _cost(
    old: Placement, proposal: Proposal, loads: Loads, topology: Topology, budget: Budget, window: Window
) -> Loads:
    """Seconds that each layer's move takes, ``[L]``."""
    arriving = metrics.received(old, proposal.placement, loads.shape[1], topology.ranks).max(axis=1)
    return arriving * budget.expert_bytes / max(window.bandwidth, 1e-9) + window.layer_s


def _unfit(proposal: Proposal, gate: Gate, window: Window) -> str:
    """Why there is nothing to weigh; empty where there is."""
    if window.tokens < gate.min_tokens:
        return f"the window saw {window.tokens} tokens, and a decision needs {gate.min_tokens}"
    if window.bandwidth <= 0:
        return "how fast ranks receive experts is not known yet"
    if proposal.now >= gate.near_bound * proposal.bound:
        return (
            f"balance is {proposal.now:.3f}, at least {gate.near_bound:g} of the {proposal.bound:.3f} that "
            "no placement can exceed"
        )
    if proposal.predicted <= proposal.now:
        return f"the policy has nothing better than what is there, at a balance of {proposal.now:.3f}"
    return ""


def _dear(proposal: Proposal, gate: Gate, saving: float, cost: float) -> str:
    return (
        f"balance would go from {proposal.now:.3f} to {proposal.predicted:.3f}, but no layer saves what "
        f"its move costs: {saving:.3g} s over {gate.horizon_s:g} s against {cost:.3g} s for {proposal.moved} "
        "experts"
    )


def _worth(proposal: Proposal, gate: Gate, paying: Flags, changed: Flags, saving: float, cost: float) -> str:
    n_layers, left = int(paying.sum()), int(np.count_nonzero(changed & ~paying))
    layers = f"{n_layers} layer" if n_layers == 1 else f"{n_layers} layers"
    dropped = f"; {left} more would cost more than they save" if left else ""
    return (
        f"moving {proposal.moved} experts in {layers} takes {cost:.3g} s "
        f"and saves {saving:.3g} s over {gate.horizon_s:g} s: balance goes from {proposal.now:.3f} to "
        f"{proposal.predicted:.3f}, where {proposal.bound:.3f} can't be exceeded{dropped}"
    )
