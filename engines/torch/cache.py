"""Keys and values of all sequences, each in a slot of its own, as an extension of transformers' `Cache`.

A layer holds two tensors [slots, key-value heads, places, head dimension] that grow with the longest
sequence. Running sequences keep to the first slots, so that a decode step reads a view and copies nothing.
Places that a row does not have yet are masked, and always finite: what is masked is multiplied by zero.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from engines.torch.passes import Pass

_BLOCK = 256
"""Places that a slot grows by at least."""


class SlotCache(Cache):
    """The cache of one model. `begin` says what the next forward pass computes."""

    layers: list[SlotLayer]  # type: ignore[assignment]

    def __init__(self, n_layers: int, slots: int, context: int) -> None:
        super().__init__(layers=[SlotLayer(slots, context) for _ in range(n_layers)])

    def begin(self, work: Pass) -> None:
        """The next forward pass is this one."""
        for layer in self.layers:
            layer.work = work

    def move(self, source: int, target: int, length: int) -> None:
        """A sequence of ``length`` tokens moves to another slot, whatever is there."""
        for layer in self.layers:
            layer.move(source, target, length)

    def clear(self, slot: int, length: int) -> None:
        """Nobody is in a slot any more."""
        for layer in self.layers:
            layer.clear(slot, length)


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer."""

    keys: Any  # the base has them as a tensor or None
    values: Any

    def __init__(self, slots: int, context: int) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._slots = slots
        self._context = context
        self.work: Pass | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make the tensors, which have no places yet, in the shape, dtype and device of these."""
        self.keys, self.values = (
            states.new_zeros(self._slots, states.shape[1], 0, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [rows, heads, n, dim] at the pass's positions.

        Returns all that the rows may read, [rows, heads, end, dim], as views.
        """
        assert self.work is not None
        work, rows = self.work, key_states.shape[0]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._reserve(work.end)
        return (
            self._write(self.keys, key_states, work, rows),
            self._write(self.values, value_states, work, rows),
        )

    def _write(self, held: torch.Tensor, states: torch.Tensor, work: Pass, rows: int) -> torch.Tensor:
        mine = held[work.first_slot : work.first_slot + rows]
        n = states.shape[2]
        if rows == 1:
            mine[:, :, work.end - n : work.end] = states
        else:
            index = work.positions[:, None, :, None].expand_as(states)
            mine.scatter_(2, index, states)
        return mine[:, :, : work.end]

    def _reserve(self, places: int) -> None:
        have = self.keys.shape[2]
        if places > have:
            wanted = min(self._context, max(2 * have, -(-places // _BLOCK) * _BLOCK))
            self.keys, self.values = _grown(self.keys, wanted), _grown(self.values, wanted)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy what a sequence of ``length`` tokens has from one slot to another, and clear the first."""
        for held in (self.keys, self.values):
            held[target, :, :length] = held[source, :, :length]
        self.clear(source, length)

    def clear(self, slot: int, length: int) -> None:
        """Zero a slot: a value there that is not finite would spoil whoever comes next."""
        for held in (self.keys, self.values):
            held[slot, :, :length] = 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        """(places that are read, the first of them): asked only where a pass brings no mask."""
        assert self.work is not None
        return self.work.end, 0

    def get_seq_length(self) -> int:
        """Tokens before the pass: asked only where it brings no mask, so that it has one row."""
        return 0 if self.work is None else self.work.end - self.work.tokens.shape[1]

    def get_max_length(self) -> int:
        """Places that a slot may have."""
        return self._context


def _grown(held: torch.Tensor, places: int) -> torch.Tensor:
    grown = held.new_zeros(held.shape[0], held.shape[1], places, held.shape[3])
    grown[:, :, : held.shape[2]] = held
    return grown


def mask(work: Pass, dtype: torch.dtype) -> torch.Tensor | None:
    """What each row may read: [rows, 1, n, end] to be added to scores, 0 or the least number of ``dtype``.

    None for a pass of one row: transformers' own mask is right for it, and its kernels are faster without.
    """
    if work.tokens.shape[0] == 1:
        return None
    places = torch.arange(work.end, device=work.positions.device)
    hidden = places[None, None, :] > work.positions[:, :, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(
        hidden, torch.finfo(dtype).min
    )[:, None]
