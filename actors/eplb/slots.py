"""Putting replicas into slots: packing them on ranks, and keeping what already sits well."""

from __future__ import annotations

import numpy as np

from actors.eplb.metrics import replicas, slot_loads
from actors.eplb.problem import Counts, Loads, Placement, indices


def pack(weights: Loads, names: Counts, bins: int) -> Counts:
    """The bin of each item, ``[B, N]``: longest processing time first, equally many items in each bin.

    Each row of ``weights`` and ``names`` is a problem of its own. The heaviest item goes first, each into the
    lightest bin that has room; two items of one name share a bin only where no other has room. Ties go to
    the lower name, and to the lower bin.
    """
    n_rows, n_items = weights.shape
    each = indices(n_rows)
    order = np.lexsort((names, -weights))
    load = np.zeros((n_rows, bins))
    room = np.full((n_rows, bins), n_items // bins)
    taken = np.zeros((n_rows, bins), bool)
    previous = np.full(n_rows, -1)
    chosen = np.empty((n_rows, n_items), np.int64)
    for item in order.T:
        name = names[each, item]
        taken[name != previous] = False
        best = np.where(taken, np.inf, load).argmin(axis=1)
        stuck = taken[each, best] | (room[each, best] == 0)
        if stuck.any():
            best[stuck] = np.where(room[stuck] > 0, load[stuck], np.inf).argmin(axis=1)
        chosen[each, item] = best
        _put(load, room, best, weights[each, item], each)
        taken[each, best] = True
        previous = name
    return chosen


def _put(load: Loads, room: Counts, into: Counts, weight: Loads, each: Counts) -> None:
    """Account for an item in each row; a bin without room is never the lightest again."""
    room[each, into] -= 1
    load[each, into] = np.where(room[each, into] > 0, load[each, into] + weight, np.inf)


def by_bin(chosen: Counts, names: Counts) -> Placement:
    """Names ordered by their bin, ``[B, N]``: slots of bin 0 first. Within a bin names ascend."""
    order = np.lexsort((names, chosen))
    return np.take_along_axis(names, order, axis=1).astype(np.int32)


def keep_slots(old: Placement, new: Placement, ranks: int) -> Placement:
    """``new`` with the slots of each rank reordered: an expert that stays on its rank keeps its slot."""
    n_layers, n_slots = new.shape
    size = n_slots // ranks
    before = old.reshape(n_layers * ranks, size)
    after = np.sort(new.reshape(n_layers * ranks, size), axis=1)
    kept = np.full_like(before, -1)
    pending = np.ones(after.shape, bool)
    line = indices(len(after))
    for slot in range(size):
        match = pending & (after == before[:, slot, None])
        at = match.argmax(axis=1)
        found = match[line, at]
        kept[found, slot] = before[found, slot]
        pending[line[found], at[found]] = False
    kept[kept < 0] = after[pending]
    return kept.reshape(n_layers, n_slots)


def part_replicas(placement: Placement, loads: Loads, ranks: int) -> Placement:
    """The placement without two replicas of an expert on one rank, as far as there are enough experts.

    A replica too many is swapped to a rank without its expert, so that the hotter of the two ranks is as cool
    as it can be; where no swap does it, the slot goes to the hottest expert that its rank does not have.
    Greedy packing seldom needs it: only where last replicas met ranks whose other slots were taken.
    """
    parted = placement.copy()
    inside = np.sort(placement.reshape(len(placement), ranks, -1), axis=2)
    doubled = (inside[:, :, 1:] == inside[:, :, :-1]).any(axis=(1, 2))
    for layer in np.flatnonzero(doubled):
        one = parted[layer : layer + 1]
        while any(_part(one, loads[layer : layer + 1], ranks, *each) for each in _doubles(one[0], ranks)):
            pass
    return parted


def _doubles(layer: Placement, ranks: int) -> list[tuple[int, int]]:
    """Rank and slot in it of every replica that its rank has in a lower slot, too."""
    experts = layer.reshape(ranks, -1).tolist()
    return [(r, s) for r, mine in enumerate(experts) for s, expert in enumerate(mine) if expert in mine[:s]]


def _part(placement: Placement, loads: Loads, ranks: int, rank: int, slot: int) -> bool:
    """Give one slot of one layer ``[1, P]`` an expert that its rank lacks. False where there is none."""
    experts = placement.reshape(ranks, -1)
    shares = slot_loads(placement, loads).reshape(ranks, -1)
    mine, hot = experts[rank], shares.sum(axis=1)
    fits = ~np.isin(experts, mine) & ~(experts == mine[slot]).any(axis=1)[:, None]
    if fits.any():
        less = shares[rank, slot] - shares
        after = np.where(fits, np.maximum(hot[rank] - less, hot[:, None] + less), np.inf)
        other = np.unravel_index(after.argmin(), after.shape)
        experts[rank, slot], experts[other] = experts[other], experts[rank, slot]
        return True
    absent = np.setdiff1d(indices(loads.shape[1]), mine)
    if not len(absent):
        return False
    share = loads[0] / replicas(placement, loads.shape[1])[0]
    experts[rank, slot] = absent[share[absent].argmax()]
    return True
