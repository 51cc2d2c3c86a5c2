"""What all MoE layers need to know of the forward pass at hand, found out once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engines.torch.experts.dispatch import Dispatch

TokenRows = Callable[[Tensor, Sequence[int]], Tensor]
"""Rows of lookup tables: positions [rows, n] and the sequence of each row make int64 [rows * n]."""


class BatchFacts:
    """One object for all layers. Call `begin` before every forward pass, on all ranks alike."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self.token_rows: TokenRows | None = None
        """Set where there are lookup tables."""
        self.real: Tensor | None = None
        """bool [n], of the tokens that this rank routes: False for padding. None where all are real."""
        self.rows: Tensor | None = None
        """int64 [n]: each token's row of the lookup tables. None where there are no lookup tables."""
        self.loads: Tensor | None = None
        """int64 [L, S], where counts of this pass are added. None where nothing is counted."""

    def begin(self, positions: Tensor, sequences: Sequence[int], real: Tensor | None = None) -> None:
        """A forward pass over tokens at ``positions`` [rows, n] of ``sequences``, one a row, begins.

        ``real`` is bool [rows, n], False for padding; None where nothing is padded.
        """
        if real is None and self._dispatch.sliced:
            real = torch.ones(positions.numel(), dtype=torch.bool, device=positions.device)
        self.real = None if real is None else self._dispatch.local(real.reshape(-1))
        if self.token_rows is not None:
            self.rows = self._dispatch.local(self.token_rows(positions, sequences))
