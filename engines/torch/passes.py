"""One forward pass, as a batch asks for it and ranks agree on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Pass:
    """What is computed at once: one token each of the running sequences, or a chunk of one prompt.

    All tokens are real: nothing is padded. Row ``i`` computes in slot ``slots[i]`` of the cache.
    """

    tokens: torch.Tensor
    """int64 [rows, n] on the device; on ranks that know no tokens zeros, to be overwritten in place."""
    positions: torch.Tensor
    """int64 [rows, n] on the device: of each token in its sequence, from 0."""
    uids: list[int]
    """The sequence of each row, numbered alike on all ranks."""
    first_slot: int
    """The rows are those of the slots from here on."""
    end: int
    """Places of the cache that are read: one more than the highest position."""
    is_prefill: bool

    @property
    def n_tokens(self) -> int:
        """Tokens computed."""
        return self.tokens.numel()


Compute = Callable[[Pass], torch.Tensor]
"""The logits (rows, vocabulary) after the last token of each row."""
