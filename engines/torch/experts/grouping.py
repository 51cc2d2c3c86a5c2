"""Tokens in the order of the slots that compute them: sorted, not looped over, and never waited for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Groups:
    """``n`` rows sorted by slot; those that belong to no slot come last, and nobody reads what they give."""

    slots: Tensor
    """int64 [n], ascending; the number of slots for a row of none."""
    ends: Tensor
    """int32 [S]: one past the last row of each slot, as grouped products take it."""

    @property
    def counts(self) -> Tensor:
        """int32 [S]: the rows of each slot."""
        return self.ends.diff(prepend=self.ends.new_zeros(1))


@dataclass(frozen=True, slots=True)
class Pairs:
    """The (token, choice) pairs of a batch, of which some are computed here."""

    groups: Groups
    tokens: Tensor
    """int64 [n]: the token of each row."""
    place: Tensor
    """int64 [T * k]: the row of each pair; meaningless where ``outside``."""
    outside: Tensor
    """bool [T * k]: pairs that other ranks compute, and those of padding."""


def pairs(ids: Tensor, first: int, slots: Tensor) -> Pairs:
    """Sort pairs for the slots from ``first`` on. ``ids`` [T, k] are physical; -1 is nobody's.

    ``slots`` is ``arange(S)``. No token may name a slot twice: T * min(k, S) rows are enough for all.
    """
    n_tokens, k = ids.shape
    n_slots = slots.numel()
    flat = ids.reshape(-1).long() - first
    outside = (flat < 0) | (flat >= n_slots)
    by_slot, order = flat.masked_fill(outside, n_slots).sort(stable=True)
    n_rows = n_tokens * min(k, n_slots)
    place = torch.empty_like(order)
    place.scatter_(0, order, torch.arange(order.numel(), device=ids.device))
    ends = torch.searchsorted(by_slot, slots, right=True, out_int32=True)
    return Pairs(Groups(by_slot[:n_rows], ends), order[:n_rows] // k, place.clamp_(max=n_rows - 1), outside)
