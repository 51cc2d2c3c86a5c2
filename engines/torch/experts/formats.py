"""How a rank holds its experts: a format owns its tensors, their making, and the kernel that reads them."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from engines.refusals import refused
from engines.torch.experts.grouping import Groups
from engines.torch.experts.weights import SCALE, ExpertWeights, Scratch, check_widths, grouped_mm


class Plain(ExpertWeights):
    """Weights in the model's own float dtype."""

    @classmethod
    def create(cls, slots: int, hidden: int, inner: int, dtype: torch.dtype, scratch: Scratch) -> Self:
        """Two tensors, ``gate_up`` [S, 2 I, H] and ``down`` [S, H, I]."""
        check_widths(hidden, inner, dtype)
        return cls(
            {
                "gate_up": torch.empty(slots, 2 * inner, hidden, dtype=dtype, device=scratch.device),
                "down": torch.empty(slots, hidden, inner, dtype=dtype, device=scratch.device),
            },
            scratch,
        )

    def fill(self, slot: int, gate: Tensor, up: Tensor, down: Tensor) -> None:
        """Copies, converting the dtype."""
        _copy_halves(self.tensors["gate_up"][slot], gate, up)
        self.tensors["down"][slot].copy_(down)

    def up(self, rows: Tensor, groups: Groups) -> Tensor:
        """One grouped product."""
        return grouped_mm(rows, self.tensors["gate_up"], groups.ends)

    def down(self, rows: Tensor, groups: Groups) -> Tensor:
        """One grouped product."""
        return grouped_mm(rows, self.tensors["down"], groups.ends)


class Int8(ExpertWeights):
    """Weights as int8 with a float32 scale for each output row of each expert, symmetric about zero.

    Rows and products stay in the model's dtype. The experts that have any rows, as many as there could be of
    them and no more, become floats for the product (exactly: all of int8 are numbers of bfloat16); the scale
    follows it.
    """

    @classmethod
    def create(cls, slots: int, hidden: int, inner: int, dtype: torch.dtype, scratch: Scratch) -> Self:
        """``gate_up`` and ``down`` as of `Plain`, and ``gate_up_scale`` [S, 2 I], ``down_scale`` [S, H]."""
        check_widths(hidden, inner, dtype)
        tensors: dict[str, Tensor] = {}
        for name, out, width in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
            tensors[name] = torch.empty(slots, out, width, dtype=torch.int8, device=scratch.device)
            tensors[name + SCALE] = torch.empty(slots, out, dtype=torch.float32, device=scratch.device)
        return cls(tensors, scratch)

    def fill(self, slot: int, gate: Tensor, up: Tensor, down: Tensor) -> None:
        """Quantises: the largest of a row becomes 127. Equal experts give equal bytes everywhere."""
        for name, halves in (("gate_up", (gate, up)), ("down", (down,))):
            whole, scale = quantised(torch.cat([half.float() for half in halves]))
            self.tensors[name][slot].copy_(whole)
            self.tensors[name + SCALE][slot].copy_(scale)

    def up(self, rows: Tensor, groups: Groups) -> Tensor:
        """One grouped product, scaled."""
        return self._product("gate_up", rows, groups)

    def down(self, rows: Tensor, groups: Groups) -> Tensor:
        """One grouped product, scaled."""
        return self._product("down", rows, groups)

    def _product(self, name: str, rows: Tensor, groups: Groups) -> Tensor:
        weight, ends = self.tensors[name], groups.ends
        if len(rows) < self.slots:  # by their shapes: some experts have no rows
            counts = groups.counts
            busy = (counts == 0).sort(stable=True).indices[: len(rows)]
            some = self._scratch.take((len(rows), *weight.shape[1:]), weight.dtype)
            weight = torch.index_select(weight, 0, busy, out=some)
            ends = counts[busy].cumsum(0, dtype=torch.int32)
        floats = self._scratch.take(tuple(weight.shape), rows.dtype).copy_(weight)
        out = grouped_mm(rows, floats, ends)
        scale = self.tensors[name + SCALE][groups.slots.clamp(max=self.slots - 1)]
        return (out * scale).to(rows.dtype)


_FORMATS: dict[str, type[ExpertWeights]] = {"plain": Plain, "int8": Int8}


def create(
    name: str, slots: int, hidden: int, inner: int, dtype: torch.dtype, scratch: Scratch
) -> ExpertWeights:
    """Room for experts in the format of this name. Raises `LoadError` for a format that there is not."""
    chosen = _FORMATS.get(name)
    if chosen is None:
        raise refused(
            "expert_format_unsupported",
            f"Experts can't be held in the format {name!r}; choose {' or '.join(_FORMATS)}.",
        )
    return chosen.create(slots, hidden, inner, dtype, scratch)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A float matrix as int8 and a float32 scale for each row: weight is about ``int8 * scale[:, None]``."""
    scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return torch.round(weight / scale[:, None]).to(torch.int8), scale


def _copy_halves(into: Tensor, gate: Tensor, up: Tensor) -> None:
    first, second = into.chunk(2)
    first.copy_(gate)
    second.copy_(up)
