"""The movement-aware policy: nearly the balance of the greedy one for a small part of its bytes.

It starts from the placement that is there. A layer is touched only where its hottest rank is well above the
ideal; then, by turns until neither finds anything:

1. spare replicas go to experts whose replicas are clearly hotter than what the spare's expert would become;
2. the hottest rank swaps an expert with one of the coolest ranks, the swap with the best gain by expert that
   has to be received, until the rank is near the ideal.

How near is a matter of drift, not of arithmetic: the more slots a rank has, the less their sum moves until
the next window; a fit tighter than that is undone before it pays. So is one in a layer that has come far from
its ideal since it was last fitted: it drifts fast, and is fitted more coarsely. For the same reason loads are
taken as a little more even than they were: what is extreme now will be less so. The constants below were
fitted to the drifting loads of tests/benchmarks/bench_eplb_policies.py.

All layers are searched at once: every step is one round of array operations over those still in work.
"""

from __future__ import annotations

import numpy as np

from actors.eplb import metrics
from actors.eplb.problem import Budget, Counts, Flags, Loads, Placement, Topology, indices
from actors.eplb.slots import keep_slots, part_replicas

VERSION = 2

TOLERANCE = 0.08
DAMPING = 0.7
"""The hottest rank of S slots may stay TOLERANCE / S ** DAMPING above the ideal."""
TRIGGER = 4.5
"""Tolerances above the ideal at which a layer is touched at all. Noise between windows stays below it."""
DRIFT = 0.15
"""Part of a layer's distance from the ideal that it may keep, where that is between tolerance and trigger."""
LEAST_GAIN = 1.2
"""Tolerances, in mean rank loads, that a swap must gain."""
HYSTERESIS = 0.02
MOST_HYSTERESIS = 0.12
"""How much hotter a replica must be than a spare one would become, before it gets that one's slot: HYSTERESIS
for each slot of a rank. With few slots a replica is most of its rank's load, and swaps can't make up for it.
"""
UNITS = 1024
"""Parts that a row is counted in. Sums of whole numbers are exact, in whatever order they are taken."""
CELLS = 1000
COOLEST = 4
"""Swaps are tried with the coolest ranks: as many as have CELLS pairs of slots, and at least so many."""
OWN_COST = 0.3
"""Cost, in received experts, of a swap as such: of two that gain alike by expert, the larger is better."""


def rearrange(placement: Placement, loads: Loads, topology: Topology, budget: Budget) -> Placement:
    """The placement, with the few moves that make it good for these loads.

    In a layer, no rank gets more experts than the budget gives it for all of them together.
    """
    ranks, n_slots = topology.ranks, placement.shape[1]
    expected = _expected(loads)
    ideal = metrics.ideal(expected, n_slots, ranks)
    tolerance = TOLERANCE * (n_slots / ranks) ** -DAMPING
    hottest = metrics.rank_loads(placement, expected, ranks).max(axis=1)
    touched = np.flatnonzero(hottest > ideal * (1 + TRIGGER * tolerance))
    if not len(touched):
        return placement
    search = _Search(placement[touched], expected[touched], ranks, budget.max_experts)
    target = ideal[touched] * (1 + _kept(hottest[touched] / ideal[touched] - 1, tolerance))
    search.replicate()
    search.swap(target, LEAST_GAIN * tolerance)
    while search.replicate():
        search.swap(target, LEAST_GAIN * tolerance)
    changed = placement.copy()
    changed[touched] = keep_slots(placement[touched], search.slots, ranks)
    return changed


def _kept(excess: Loads, tolerance: float) -> Loads:
    """What of ``excess`` above the ideal, a part of it, each layer may keep, ``[A]``.

    Never more than what has a layer touched: a layer that was just fitted is left alone under the same load.
    """
    return np.clip(DRIFT * excess, tolerance, TRIGGER * tolerance)


def _expected(loads: Loads) -> Loads:
    """What the next window will see where this one saw ``loads``, up to a factor: loads to the power 15/16.

    In whole numbers, and with nothing but divisions and square roots, which are the same on every machine.
    """
    sixteenth = np.sqrt(np.sqrt(np.sqrt(np.sqrt(loads))))
    return np.floor(UNITS * loads / np.maximum(sixteenth, np.finfo(np.float64).tiny))


class _Search:
    """Placements of A layers on their way to better ones."""

    def __init__(self, placement: Placement, loads: Loads, ranks: int, most: int | None) -> None:
        n_experts = loads.shape[1]
        self._loads = loads
        self._ranks = ranks
        self._size = placement.shape[1] // ranks
        self._hysteresis = min(HYSTERESIS * self._size, MOST_HYSTERESIS)
        self._most = placement.shape[1] if most is None else most
        """Experts that a rank may receive in one layer."""
        self._foreign = ~metrics.held(placement, n_experts, ranks)
        """What a rank would have to receive, ``[A, R, E]``."""
        self.slots = part_replicas(placement, loads, ranks)
        self._held = metrics.held(self.slots, n_experts, ranks)
        self._counts = metrics.replicas(self.slots, n_experts)

    def replicate(self) -> bool:
        """Give slots of spare replicas to hotter experts, in all layers. Whether any changed hands.

        Replica counts alone decide who gives and who gets: swaps never undo it, and it comes to an end.
        """
        at, changed = indices(len(self.slots)), False
        while len(at):
            hot, slot, found = self._spare(at)
            at, hot, slot = at[found], hot[found], slot[found]
            giver = self.slots[at, slot]
            self._counts[at, giver] -= 1
            self._counts[at, hot] += 1
            self._put(at, slot, hot)
            changed |= len(at) > 0
        return changed

    def _spare(self, at: Counts) -> tuple[Counts, Counts, Flags]:
        """For each layer its hottest expert, the slot to give it, and whether to; ``[A]`` each."""
        each, slots, counts = indices(len(at)), self.slots[at], self._counts[at]
        share = self._loads[at] / counts
        hot = np.where(counts < self._ranks, share, -1.0).argmax(axis=1)
        without = np.where(counts > 1, self._loads[at] / np.maximum(counts - 1, 1), np.inf)
        closed = self._held[at, :, hot] | (self._full(at) & self._foreign[at, :, hot])
        value = np.where(closed[:, self._rank_of], np.inf, without[each[:, None], slots])
        least = value.min(axis=1)
        load = self._rank_loads(at)[:, self._rank_of]
        slot = np.where(value == least[:, None], load, np.inf).argmin(axis=1)
        return hot, slot, share[each, hot] > (1 + self._hysteresis) * least

    def swap(self, target: Loads, least_gain: float) -> None:
        """Cool the hottest rank of every layer down to ``target`` ``[A]``, as far as swaps can.

        A swap must gain ``least_gain`` mean rank loads: of the hotter of the two ranks, before and after.
        """
        at = indices(len(self.slots))
        floor = least_gain * self._loads.sum(axis=1) / self._ranks
        while len(at):
            mine, theirs, found = self._best_swap(at, target[at], floor[at])
            at, mine, theirs = at[found], mine[found], theirs[found]
            out, back = self.slots[at, mine], self.slots[at, theirs]
            self._put(at, theirs, out)
            self._put(at, mine, back)

    def _best_swap(self, at: Counts, target: Loads, floor: Loads) -> tuple[Counts, Counts, Flags]:
        """Of each layer a slot of its hottest rank, the one to swap it with, and whether to; ``[A]`` each."""
        each, size = indices(len(at)), self._size
        by_rank = self._rank_loads(at)
        order = by_rank.argsort(axis=1, kind="stable")
        hot, cool = order[:, -1], order[:, : self._n_coolest]
        hottest = by_rank[each, hot]
        mine = hot[:, None] * size + indices(size)
        theirs = (cool[:, :, None] * size + indices(size)).reshape(len(at), -1)
        share = self._shares(at)
        less = share[each[:, None], mine][:, :, None] - share[each[:, None], theirs][:, None, :]
        apart = np.repeat(hottest[:, None] - by_rank[each[:, None], cool], size, axis=1)[:, None, :]
        gain = np.minimum(less, apart - less)
        allowed, cost = self._allowed(at, hot, cool, self.slots[at[:, None], mine])
        allowed &= gain > floor[:, None, None]
        score = np.where(allowed, gain / (np.maximum(cost, 0) + OWN_COST), 0.0).reshape(len(at), -1)
        best = score.argmax(axis=1)
        found = (score[each, best] > 0) & (hottest > target)
        one, other = np.divmod(best, theirs.shape[1])
        return mine[each, one], theirs[each, other], found

    def _allowed(self, at: Counts, hot: Counts, cool: Counts, out: Placement) -> tuple[Flags, Counts]:
        """Whether experts ``out`` ``[A, S]`` may swap with those of the cool ranks, and what ranks receive.

        Both are ``[A, S, K * S]``. A swap may give no rank an expert twice. An expert that goes on from where
        it would have had to be received costs nothing there any more.
        """
        size, full = self._size, self._full(at)
        line = indices(len(at))[:, None]
        back = self.slots[at].reshape(len(at), self._ranks, size)[line, cool].reshape(len(at), -1)
        of_back = np.repeat(cool, size, axis=1)
        held, foreign = self._held[at], self._foreign[at]
        there = (line[:, :, None], cool[:, None, :], out[:, :, None])
        here = (line, hot[:, None], back)
        closed_there = held[there] | (foreign[there] & full[line, cool][:, None, :])
        closed_here = held[here] | (foreign[here] & full[line, hot[:, None]])
        allowed = ~np.repeat(closed_there, size, axis=2) & ~closed_here[:, None, :]
        arriving = np.repeat(foreign[there].astype(np.int64), size, axis=2) + foreign[here][:, None, :]
        from_hot = foreign[line, hot[:, None], out].astype(np.int64)
        leaving = from_hot[:, :, None] + foreign[line, of_back, back][:, None, :]
        return allowed, arriving - leaving

    def _put(self, at: Counts, slot: Counts, expert: Counts | Placement) -> None:
        """Let ``expert`` take ``slot``, one in each of the layers ``at``."""
        rank = slot // self._size
        self._held[at, rank, self.slots[at, slot]] = False
        self._held[at, rank, expert] = True
        self.slots[at, slot] = expert

    def _shares(self, at: Counts) -> Loads:
        """Load of each slot, in whole units, ``[A, P]``."""
        share = np.floor(self._loads[at] / self._counts[at])
        return np.take_along_axis(share, self.slots[at], axis=1)

    def _rank_loads(self, at: Counts) -> Loads:
        return self._shares(at).reshape(len(at), self._ranks, self._size).sum(axis=2)

    def _full(self, at: Counts) -> Flags:
        """Ranks that may receive no more, ``[A, R]``."""
        if self._most >= self.slots.shape[1]:
            return np.zeros((len(at), self._ranks), bool)
        return (self._held[at] & self._foreign[at]).sum(axis=2) >= self._most

    @property
    def _rank_of(self) -> Counts:
        return indices(self.slots.shape[1]) // self._size

    @property
    def _n_coolest(self) -> int:
        return min(max(COOLEST, CELLS // self._size**2), self._ranks - 1)
