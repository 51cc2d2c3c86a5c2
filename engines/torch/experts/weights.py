"""The experts in a rank's slots, whatever their format.

What can be moved, checksummed or replaced of an expert is what `ExpertWeights.views` gives: the very memory
that the kernel reads, whole for each slot.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from engines.refusals import refused
from engines.torch.experts.grouping import Groups

SCALE = "_scale"
"""What follows the name of a quantized tensor in that of its scales."""
_ALIGNMENT = 16
"""Bytes that a row of a grouped product must be a multiple of."""


class Scratch:
    """Memory of ``device`` that all layers use in turn: fresh pages for each cost more than the product.

    It grows to the most that was asked for, which the first prefill of a full chunk asks for.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._rooms: dict[torch.dtype, Tensor] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor whose contents live until the next call with this dtype."""
        n = math.prod(shape)
        room = self._rooms.get(dtype)
        if room is None or room.numel() < n:
            with torch.inference_mode(False):
                room = self._rooms[dtype] = torch.empty(n, dtype=dtype, device=self.device)
        return room[:n].view(shape)


class ExpertWeights(ABC):
    """The experts of one layer on one rank, in S slots. ``tensors`` are [S, ...] each.

    Raises `LoadError` where the tensors can't be moved slot by slot.
    """

    def __init__(self, tensors: Mapping[str, Tensor], scratch: Scratch) -> None:
        self.tensors = dict(tensors)
        self._scratch = scratch
        _check(self.tensors)

    @classmethod
    @abstractmethod
    def create(cls, slots: int, hidden: int, inner: int, dtype: torch.dtype, scratch: Scratch) -> Self:
        """Room for ``slots`` experts, to be filled, on the device of ``scratch``. Raises `LoadError`.

        ``dtype`` is that of the model.
        """

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


def grouped_mm(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each group of rows by the transpose of its own matrix: [n, in], [G, out, in], [G] -> [n, out].

    Rows beyond the last end are not computed: what stands there is whatever was in the memory.
    """
    return torch.nn.functional.grouped_mm(rows, weight.transpose(-2, -1), offs=ends)


def check_widths(hidden: int, inner: int, dtype: torch.dtype) -> None:
    """Raises `LoadError` for experts that `grouped_mm` can't multiply."""
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
        pair = name.removesuffix(SCALE) if name.endswith(SCALE) else name + SCALE
        if pair not in tensors and (name.endswith(SCALE) or not tensor.is_floating_point()):
            raise refused(
                "expert_scale_missing",
                f"The experts' tensor {name!r} lacks {pair!r}: a quantized weight and its scale go together.",
            )
    if len({tensor.shape[0] for tensor in tensors.values()}) != 1:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise refused(
            "expert_view_not_contiguous", f"The experts' tensors don't have the same slots: {shapes}."
        )
