"""Between a router and the experts: which slot a logical expert is computed in."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.experts import maps
from engines.torch.experts.facts import BatchFacts

_SPREAD = 2654435761
"""Knuth's multiplicative hash: 2**32 by the golden ratio, made odd."""
_SEQUENCE = 0x9E3779B1


def token_rows(positions: Tensor, sequences: Sequence[int]) -> Tensor:
    """Rows of lookup tables for tokens by their sequence and place in it: int64 [rows * n].

    ``positions`` is int64 [rows, n], with a sequence for each row. Equal on all ranks for the same token;
    tokens of one batch, and one sequence's tokens in time, spread over all rows.
    """
    of = torch.tensor(sequences, dtype=torch.int64, device=positions.device).unsqueeze(-1)
    mixed = (positions + 1) * _SPREAD + of * _SEQUENCE & 0xFFFFFFFF
    mixed = ((mixed >> 15 ^ mixed) * _SEQUENCE) & 0xFFFFFFFF
    return (mixed >> 7).remainder(maps.ROWS).reshape(-1)


class RouterAdapter:
    """A forward hook of one router: its choice of logical experts becomes one of slots, by `lookup`.

    `lookup` is the same tensor as long as the layer lives; only its contents change, between two forward
    passes.
    """

    def __init__(
        self, facts: BatchFacts, layer_map: Sequence[int], n_experts: int, device: torch.device
    ) -> None:
        self._facts = facts
        self._n_experts = n_experts
        self.lookup = torch.empty(maps.ROWS, n_experts, dtype=torch.int32, device=device)
        """int32 [ROWS, E]: the slot of each expert, by a token's row."""
        self.refresh(layer_map)

    def __call__(
        self, router: object, args: object, chosen: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The router's logits and weights as they are, and slots [n, k] in place of experts."""
        del router, args
        logits, weights, experts = chosen
        rows = self._facts.rows
        assert rows is not None, "begin() comes before every forward pass"
        return logits, weights, self.lookup[rows.unsqueeze(-1), experts]

    def refresh(self, layer_map: Sequence[int]) -> None:
        """Route by another map from the next forward pass on."""
        self.lookup.copy_(torch.from_numpy(maps.lookup_table(layer_map, self._n_experts)))

    def live(self) -> NDArray[np.int32]:
        """A copy of what routes now, for a digest."""
        return self.lookup.cpu().numpy().copy()
