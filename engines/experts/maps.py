"""Placements of one layer's experts: which logical expert is in which physical slot, and how tokens find it.

A *map* names the logical expert in each of P slots; slot p lives on rank ``p // (P / ranks)``. A *lookup
table* answers, for a row and a logical expert, the slot of one of its copies; a token keeps to one row.
Deciders make the same tables as ranks do, so that both can compare digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Map = Sequence[int] | NDArray[np.integer]
"""P logical experts, one a slot."""

ROWS = 840
"""Rows of a lookup table. 1 to 8 divide it, so that up to 8 copies of an expert get exactly equal shares."""


def initial(n_experts: int, n_slots: int, ranks: int) -> list[int]:
    """A map for experts whose load nobody knows; the identity where no slot is redundant.

    Copies are dealt to the ranks one by one, expert by expert: those of one expert go to different ranks as
    long as there are so many, and no rank has more of the redundant ones than another by more than one.
    Raises `ValueError` as `check` does.
    """
    if n_slots == n_experts:
        slots = list(range(n_slots))
    else:
        copies = [n_slots // n_experts + (expert < n_slots % n_experts) for expert in range(n_experts)]
        dealt = [expert for expert, n in enumerate(copies) for _ in range(n)]
        slots = [expert for rank in range(ranks) for expert in dealt[rank::ranks]]
    check(slots, n_experts, ranks)
    return slots


def check(layer: Map, n_experts: int, ranks: int) -> None:
    """Raises `ValueError`, with a sentence, where no layer can be placed like this.

    Every expert needs a slot, every rank as many slots as the others, and two copies of one expert may share
    a rank only where there are more copies than ranks.
    """
    placed = np.asarray(layer, dtype=np.int64)
    if not placed.size or placed.size % ranks:
        raise ValueError(f"{placed.size} physical experts can't be divided evenly among {ranks} ranks.")
    if placed.min() < 0 or placed.max() >= n_experts:
        strange = placed[(placed < 0) | (placed >= n_experts)][0]
        raise ValueError(f"The map names expert {strange}, but the layer has experts 0 to {n_experts - 1}.")
    copies = replicas(placed, n_experts)
    if not copies.all():
        raise ValueError(f"Expert {int(np.argmin(copies))} has no slot: every expert needs one.")
    by_rank = placed.reshape(ranks, -1)
    on_rank = np.zeros((ranks, n_experts), dtype=np.int64)
    np.add.at(on_rank, (np.arange(ranks)[:, None], by_rank), 1)
    doubled = (on_rank > 1) & (copies <= ranks)
    if doubled.any():
        rank, expert = np.argwhere(doubled)[0]
        raise ValueError(f"Rank {rank} has expert {expert} twice, though it has no more copies than ranks.")


def replicas(layer: Map, n_experts: int) -> NDArray[np.int64]:
    """How many slots each expert has: [n_experts]."""
    return np.bincount(np.asarray(layer, dtype=np.int64), minlength=n_experts)


def lookup_table(layer: Map, n_experts: int, rows: int = ROWS) -> NDArray[np.int32]:
    """The slot of a copy of each expert, by row: [rows, n_experts].

    Down the rows an expert's copies take turns, so that their shares differ by one row at most; experts begin
    with different copies, so that no row has all the first ones. Every expert must have a slot.
    """
    placed = np.asarray(layer, dtype=np.int64)
    copies = replicas(placed, n_experts)
    by_expert = np.argsort(placed, kind="stable").astype(np.int32)
    first = np.cumsum(copies) - copies
    turn = np.arange(rows)[:, None] + np.arange(n_experts)
    return by_expert[first + turn % copies]


def digest(layer: Map, lookup: NDArray[np.int32]) -> str:
    """Of a map and a lookup table: equal on all ranks that route alike. 32 hexadecimal digits."""
    found = hashlib.blake2b(digest_size=16)
    for array in (np.asarray(layer, dtype="<i4"), np.asarray(lookup, dtype="<i4")):
        found.update(repr(array.shape).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
