"""Balance, its bound, and what a move has to carry: one definition each.

Balance is (sum over layers of the mean rank load) / (sum over layers of the hottest rank's load), as vLLM
logs it. Layers run one after the other: summing loads over layers first would hide the hot rank of each.
"""

from __future__ import annotations

import numpy as np

from actors.eplb.problem import Counts, Flags, Loads, Placement, indices


def rows(placement: Placement) -> Counts:
    """Indices ``[L, 1]`` that go with a placement's entries: ``x[rows(placement), placement]``."""
    return indices(len(placement))[:, None]


def replicas(placement: Placement, n_experts: int) -> Counts:
    """Slots that hold each expert, ``[L, E]``."""
    flat = (placement + rows(placement) * n_experts).ravel()
    return np.bincount(flat, minlength=len(placement) * n_experts).reshape(len(placement), n_experts)


def held(placement: Placement, n_experts: int, ranks: int) -> Flags:
    """Whether a rank holds an expert, ``[L, R, E]``."""
    n_layers, n_slots = placement.shape
    flags = np.zeros((n_layers, ranks, n_experts), bool)
    flags[rows(placement), indices(n_slots) // (n_slots // ranks), placement] = True
    return flags


def slot_loads(placement: Placement, loads: Loads) -> Loads:
    """Load of each slot, ``[L, P]``, where an expert's rows divide evenly over its replicas."""
    share = loads / np.maximum(replicas(placement, loads.shape[1]), 1)
    return share[rows(placement), placement]


def rank_loads(placement: Placement, loads: Loads, ranks: int) -> Loads:
    """Load of each rank, ``[L, R]``."""
    return slot_loads(placement, loads).reshape(len(placement), ranks, -1).sum(axis=2)


def balance(by_rank: Loads) -> float:
    """Mean by hottest, each summed over layers, of loads ``[L, R]``: 1 is perfect, and what no load has."""
    hottest = float(by_rank.max(axis=1).sum())
    return float(by_rank.mean(axis=1).sum()) / hottest if hottest > 0 else 1.0


def replicate(loads: Loads, n_slots: int, most: int) -> Counts:
    """Replicas of each expert, ``[L, E]``, that make the hottest replica as cool as it can be.

    One replica each; every further slot goes to the expert with the largest load by replica, which is
    optimal. None gets more than ``most`` while others can take them (two replicas on a rank are as one).
    Ties go to the lower expert.
    """
    n_layers, n_experts = loads.shape
    counts = np.ones((n_layers, n_experts), np.int64)
    share = loads.copy() if most > 1 else np.full_like(loads, -1.0)
    each = indices(n_layers)
    for _ in range(n_slots - n_experts):
        hottest = share.argmax(axis=1)
        counts[each, hottest] += 1
        now = counts[each, hottest]
        share[each, hottest] = np.where(now < most, loads[each, hottest] / now, -1.0)
    return counts


def ideal(loads: Loads, n_slots: int, ranks: int) -> Loads:
    """A lower bound of the hottest rank's load, ``[L]``: the mean, or the hottest replica at its coolest."""
    counts = replicate(loads, n_slots, ranks)
    return np.maximum(loads.sum(axis=1) / ranks, (loads / np.minimum(counts, ranks)).max(axis=1))


def bound(loads: Loads, n_slots: int, ranks: int) -> float:
    """The balance that no placement can exceed. With few slots a rank it may be out of reach, too."""
    hottest = float(ideal(loads, n_slots, ranks).sum())
    return float(loads.sum()) / ranks / hottest if hottest > 0 else 1.0


def received(old: Placement, new: Placement, n_experts: int, ranks: int) -> Counts:
    """Experts that each rank must receive in each layer, ``[L, R]``: those that it did not hold."""
    arriving = held(new, n_experts, ranks) & ~held(old, n_experts, ranks)
    return arriving.sum(axis=2)
