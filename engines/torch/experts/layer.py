"""One MoE layer of one rank: what transformers calls in place of its own experts."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from engines.torch.experts.dispatch import Dispatch
from engines.torch.experts.facts import BatchFacts
from engines.torch.experts.grouping import pairs
from engines.torch.experts.layouts import MoeBlock
from engines.torch.experts.weights import ExpertWeights

IMPLEMENTATION = "cuebook"
"""Name of our experts function in transformers' registry."""


class ExpertLayer:
    """The experts of a layer on this rank. ``map`` names the logical expert in each of all ranks' slots."""

    def __init__(
        self,
        number: int,
        block: MoeBlock,
        layer_map: list[int],
        weights: ExpertWeights,
        *,
        rank: int,
        dispatch: Dispatch,
        facts: BatchFacts,
    ) -> None:
        self.number = number
        """Among the MoE layers, from 0."""
        self.index = block.layer
        """Among the decoder layers."""
        self.experts = block.n_experts
        """Logical ones."""
        self.shapes = (block.inner, block.hidden), (block.inner, block.hidden), (block.hidden, block.inner)
        """Of an expert's gate, up and down projection."""
        self.map = layer_map
        self.weights = weights
        self.first = rank * weights.slots
        """The physical slot that is the first of this rank."""
        self._dispatch = dispatch
        self._facts = facts
        self._slots = torch.arange(weights.slots, device=next(iter(weights.tensors.values())).device)

    def forward(self, module: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The routed experts' sum for all tokens, [T, H]. ``ids`` are physical."""
        if self._facts.real is not None:
            ids = ids.masked_fill(~self._facts.real.unsqueeze(-1), -1)
        return self._dispatch.run(hidden, ids, weights, partial(self._compute, module))

    def _compute(self, module: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Implements `Compute` of the dispatch. Sums in the order of choices, as transformers does."""
        here = pairs(ids, self.first, self._slots)
        rows = hidden[here.tokens]
        # The activation is the module's own; it sees rows of no slot too, whose outcome is masked below.
        inner = module._apply_gate(self.weights.up(rows, here.groups))
        out = self.weights.down(inner, here.groups)[here.place]
        out = out.masked_fill_(here.outside.unsqueeze(-1), 0) * weights.reshape(-1, 1)
        if self._facts.loads is not None:
            self._facts.loads[self.number].add_(here.groups.counts)
        return out.view(*ids.shape, -1).sum(dim=1, dtype=torch.float32)


def _forward(module: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    return module.layer.forward(module, hidden, ids, weights)


def install(module: Any, layer: ExpertLayer) -> None:
    """Have ``layer`` compute in place of transformers' experts module, whose own weights are taken out."""
    del module.gate_up_proj, module.down_proj
    module.layer = layer
    module._is_hf_initialized = True  # or transformers would draw the weights that are no longer here


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, _forward)
