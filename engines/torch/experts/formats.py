"""How a rank holds the experts in its slots. A format owns its tensors, their making, and the kernel that
reads them.

What can be moved, checksummed or replaced of an expert is what `ExpertWeights.views` gives: the very memory
that the kernel reads, whole for each slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from engines.refusals import refused
from engines.torch.experts.grouping import Groups

_ALIGNMENT = 16
"""Bytes that a row of a grouped product must be a multiple of."""
_SCALE = "_scale"


class ExpertWeights(ABC):
    """The experts of one layer on one rank, in S slots. ``tensors`` are [S, ...] each.

    Raises `LoadError` where the tensors can't be moved slot by slot.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)
        _check(self.tensors)

    @classmethod
    @abstractmethod
    def create(cls, slots: int, hidden: int, inner: int, dtype: torch.dtype, device: torch.device) -> Self:
        """Room for ``slots`` experts, to be filled. ``dtype`` is that of the model. Raises `LoadError`."""

    @abstractmethod
    def fill(self, slot: int, gate: Tensor, up: Tensor, down: Tensor) -> None:
        """Put an expert into a slot: gate and up [I, H], down [H, I], of any float dtype, on any device."""

    @abstractmethod
    def up(self, rows: Tensor, groups: Groups) -> Tensor:
        """Both first projections of each row by its slot's expert: [n, H] -> [n, 2 I], gate then up."""

    @abstractmethod
    def down(self, rows: Tensor, groups: Groups) -> Tensor:
        """The second projection: [n, I] -> [n, H]."""

    @property
    def slots(self) -> int:
        """S."""
        return next(iter(self.tensors.values())).shape[0]

    def views(self, slot: int) -> dict[str, Tensor]:
        """All that the kernel reads for a slot: contiguous, and the same memory."""
        return {name: tensor[slot] for name, tensor in self.tensors.items()}

    def blank(self, slots: int) -> Self:
        """Room for ``slots`` experts in the same format, such as those that are on their way."""
        return type(self)(
            {name: tensor.new_empty((slots, *tensor.shape[1:])) for name, tensor in self.tensors.items()}
        )


class Plain(ExpertWeights):
    """Weights in the model's own float dtype."""

    @classmethod
    def create(cls, slots: int, hidden: int, inner: int, dtype: torch.dtype, device: torch.device) -> Self:
        """Two tensors, ``gate_up`` [S, 2 I, H] and ``down`` [S, H, I]."""
        _check_widths(hidden, inner, dtype)
        return cls(
            {
                "gate_up": torch.empty(slots, 2 * inner, hidden, dtype=dtype, device=device),
                "down": torch.empty(slots, hidden, inner, dtype=dtype, device=device),
            }
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
    def create(cls, slots: int, hidden: int, inner: int, dtype: torch.dtype, device: torch.device) -> Self:
        """``gate_up`` and ``down`` as of `Plain`, and ``gate_up_scale`` [S, 2 I], ``down_scale`` [S, H]."""
        _check_widths(hidden, inner, dtype)
        tensors: dict[str, Tensor] = {}
        for name, out, width in (("gate_up", 2 * inner, hidden), ("down", hidden, inner)):
            tensors[name] = torch.empty(slots, out, width, dtype=torch.int8, device=device)
            tensors[name + _SCALE] = torch.empty(slots, out, dtype=torch.float32, device=device)
        return cls(tensors)

    def fill(self, slot: int, gate: Tensor, up: Tensor, down: Tensor) -> None:
        """Quantises: the largest of a row becomes 127. Equal experts give equal bytes everywhere."""
        for name, halves in (("gate_up", (gate, up)), ("down", (down,))):
            whole, scale = quantised(torch.cat([half.float() for half in halves]))
            self.tensors[name][slot].copy_(whole)
            self.tensors[name + _SCALE][slot].copy_(scale)

    def up(self, rows: Tensor, groups: Groups) -> Tensor:
        """One grouped product, scaled."""
        return self._product("gate_up", rows, groups)

    def down(self, rows: Tensor, groups: Groups) -> Tensor:
        """One grouped product, scaled."""
        return self._product("down", rows, groups)

    def _product(self, name: str, rows: Tensor, groups: Groups) -> Tensor:
        weight, ends = self.tensors[name], groups.ends
        if len(rows) < self.slots:  # by their shapes: some experts have no rows
            busy = (groups.counts == 0).sort(stable=True).indices[: len(rows)]
            weight, ends = weight[busy], groups.counts[busy].cumsum(0, dtype=torch.int32)
        out = grouped_mm(rows, weight.to(rows.dtype), ends)
        scale = self.tensors[name + _SCALE][groups.slots.clamp(max=self.slots - 1)]
        return (out * scale).to(rows.dtype)


_FORMATS: dict[str, type[ExpertWeights]] = {"plain": Plain, "int8": Int8}


def create(
    name: str, slots: int, hidden: int, inner: int, dtype: torch.dtype, device: torch.device
) -> ExpertWeights:
    """Room for experts in the format of this name. Raises `LoadError` for a format that there is not."""
    chosen = _FORMATS.get(name)
    if chosen is None:
        raise refused(
            "expert_format_unsupported",
            f"Experts can't be held in the format {name!r}; choose {' or '.join(_FORMATS)}.",
        )
    return chosen.create(slots, hidden, inner, dtype, device)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A float matrix as int8 and a float32 scale for each row: weight is about ``int8 * scale[:, None]``."""
    scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return torch.round(weight / scale[:, None]).to(torch.int8), scale


def grouped_mm(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each group of rows by the transpose of its own matrix: [n, in], [G, out, in], [G] -> [n, out].

    Rows beyond the last end are not computed: what stands there is whatever was in the memory.
    """
    return torch.nn.functional.grouped_mm(rows, weight.transpose(-2, -1), offs=ends)


def _copy_halves(into: Tensor, gate: Tensor, up: Tensor) -> None:
    first, second = into.chunk(2)
    first.copy_(gate)
    second.copy_(up)


def _check_widths(hidden: int, inner: int, dtype: torch.dtype) -> None:
    if not dtype.is_floating_point:
        raise refused("expert_format_unsupported", f"Experts compute in floats, not in {dtype}.")
    for name, width in (("hidden", hidden), ("inner", inner)):
        if width * dtype.itemsize % _ALIGNMENT:
            raise refused(
                "expert_format_unsupported",
                f"Experts of the {name} width {width} can't be multiplied in {dtype}: it must be a multiple "
                f"of {_ALIGNMENT // dtype.itemsize}. Use another dtype or strategy.",
            )


def _check(tensors: Mapping[str, Tensor]) -> None:
    """Raises `LoadError` where a tensor is not whole for each slot, or one of a pair is missing."""
    for name, tensor in tensors.items():
        if not tensor[0].is_contiguous():
            raise refused(
                "expert_view_not_contiguous",
                f"The experts' tensor {name!r} is not contiguous by slot (strides {tensor.stride()}), so "
                "that experts can't be moved. Make it contiguous.",
            )
        pair = name.removesuffix(_SCALE) if name.endswith(_SCALE) else name + _SCALE
        if pair not in tensors and (name.endswith(_SCALE) or not tensor.is_floating_point()):
            raise refused(
                "expert_scale_missing",
                f"The experts' tensor {name!r} lacks {pair!r}: a quantized weight and its scale go together.",
            )
    if len({tensor.shape[0] for tensor in tensors.values()}) != 1:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise refused(
            "expert_view_not_contiguous", f"The experts' tensors don't have the same slots: {shapes}."
        )
