"""From one placement to another, slot by slot: what goes where, and who sends it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from actors.eplb.problem import Counts, Placement, Topology


class Move(NamedTuple):
    """Fill ``slot`` with ``expert`` from the slot ``source``, which held it before; slots of one layer."""

    slot: int
    expert: int
    source: int


def moves(old: Placement, new: Placement, topology: Topology) -> list[list[Move]]:
    """What to do in each layer, by ascending slot; nothing where a slot keeps its expert.

    Sources are slots of the old placement: no move of a layer may overwrite what another of it has still to
    read. A rank takes a copy of its own where it has one. Else it takes one of its node before others, and
    of those the copy whose rank has sent the least so far, over all layers; then the lowest slot.
    """
    sent = np.zeros(topology.ranks, np.int64)
    return [_of_layer(before, after, topology, sent) for before, after in zip(old, new, strict=True)]


def _of_layer(old: Placement, new: Placement, topology: Topology, sent: Counts) -> list[Move]:
    size = len(old) // topology.ranks
    planned: list[Move] = []
    for slot in np.flatnonzero(old != new).tolist():
        rank, expert = slot // size, int(new[slot])
        holders = np.flatnonzero(old == expert).tolist()
        source = min(holders, key=lambda each: _distance(each // size, rank, topology, sent, each))
        sent[source // size] += source // size != rank
        planned.append(Move(slot, expert, source))
    return planned


def _distance(source: int, rank: int, topology: Topology, sent: Counts, slot: int) -> tuple[int, int, int]:
    """How unwilling ``rank`` is to take an expert from ``source``: near first, then evenly."""
    if source == rank:
        return 0, 0, slot
    return 1 if topology.nodes[source] == topology.nodes[rank] else 2, int(sent[source]), slot
