"""A rank's part in moving experts: what is received waits beside the live rows until the log has decided.

Staging ends on all ranks before any of them applies, so no row is overwritten that another still sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from engines.contract import GroupLost, MoveFailed, Staged
from engines.refusals import refused
from engines.torch.eplb.checksums import checksum
from engines.torch.eplb.communicator import Communicator, Transfer
from engines.torch.group import TorchGroup
from events.experts import LayerMoves, StagedSlot
from events.values import Cause


class ExpertRows(Protocol):
    """The experts of one layer on this rank, S of the layer's P slots."""

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All that the kernel reads, each (S, ...) and contiguous: the very tensors, not copies."""
        ...

    @property
    def map(self) -> list[int]:
        """The logical expert in each of the P slots."""
        ...

    def remap(self, map: list[int]) -> None:
        """Route by a new map from the next pass on. The lookup tensor stays the same, with new content."""
        ...

    def digest(self) -> str:
        """Of the map and the bytes of the lookup tensor."""
        ...


class _Answer(msgspec.Struct, frozen=True):
    """What a rank has to say of its part; checksums by slot. ``why`` it failed, empty where it did not."""

    why: str = ""
    sent: dict[int, str] = {}
    staged: dict[int, str] = {}


@dataclass(frozen=True, slots=True)
class _Held:
    """A staged layer; ``sums`` are the checksums of this rank's new rows, by slot."""

    layer: int
    map: list[int]
    sums: dict[int, str]


class Movement:
    """Stages and applies, a layer at a time. All ranks call its methods alike, between two passes.

    Tickets are rank 0's, counted from 1: a rank that gets another than the next one refuses before it
    touches the group, since collectives in another order end the process.
    """

    def __init__(
        self, group: TorchGroup, layers: Sequence[ExpertRows], *, stage_s: float, apply_s: float
    ) -> None:
        """Takes the memory of the staging buffers, one layer's. Raises `LoadError`, `GroupLost`.

        No rank waits longer for another than ``stage_s`` and ``apply_s`` seconds.
        """
        self._group = group
        self._layers = layers
        self._stage_s, self._apply_s = stage_s, apply_s
        self._communicator = Communicator(group)
        _check(layers)
        self._buffers = [torch.empty_like(tensor) for tensor in layers[0].tensors]
        self._per_rank = len(self._buffers[0])
        if self._communicator.needs_reservation:
            self._communicator.reserve()
        self._held: _Held | None = None
        self._ticket = 0

    @property
    def staging_bytes(self) -> int:
        """Memory of the staging buffers on this rank."""
        return sum(buffer.nbytes for buffer in self._buffers)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert, all its tensors."""
        return self.staging_bytes // self._per_rank

    @torch.inference_mode()
    def stage(self, ticket: int, moves: LayerMoves) -> Staged:
        """Receive a layer's rows into the staging buffers, with checksums at both ends.

        Raises `MoveFailed` on all ranks where one of them can't, `GroupLost` where one does not answer.
        """
        self._turn(ticket)
        began = time.perf_counter()
        self._together(lambda: self._admit(moves))
        self._communicator.exchange(
            [self._transfer(slot=move.slot, source=move.source, layer=moves.layer) for move in moves.moves],
            timeout_s=self._stage_s,
        )
        answers = self._together(lambda: self._received(moves))
        sums = answers[self._group.rank].staged
        self._held = _Held(moves.layer, moves.map, sums)
        return Staged(
            slots=[
                StagedSlot(
                    move.slot,
                    answers[self._rank(move.source)].sent[move.slot],
                    answers[self._rank(move.slot)].staged[move.slot],
                )
                for move in moves.moves
            ],
            bytes=self.expert_bytes * sum(self._rank(m.slot) != self._rank(m.source) for m in moves.moves),
            seconds=time.perf_counter() - began,
        )

    @torch.inference_mode()
    def apply(self, ticket: int, layer: int, map: list[int]) -> list[str]:
        """Copy what is staged over the live rows and route by the new map. The digests by rank.

        Raises `RuntimeError` where this is not what is staged or a row did not arrive whole: the rank must
        end, since the log already names the new map. Raises `GroupLost`.
        """
        self._turn(ticket)
        held = self._held
        if held is None or (held.layer, held.map) != (layer, map):
            staged = "nothing" if held is None else f"layer {held.layer} with the map {held.map}"
            raise RuntimeError(f"told to apply layer {layer} with the map {map}, but {staged} is staged")
        experts = self._layers[layer]
        for slot, expected in held.sums.items():
            row = slot % self._per_rank
            for live, buffer in zip(experts.tensors, self._buffers, strict=True):
                live[row].copy_(buffer[row])
            if checksum(tensor[row] for tensor in experts.tensors) != expected:
                raise RuntimeError(f"slot {slot} of layer {layer} is not what was staged for it")
        experts.remap(map)
        self._held = None
        digests = self._group.gather_bytes(experts.digest().encode(), timeout_s=self._apply_s)
        return [digest.decode() for digest in digests]

    def drop(self, ticket: int) -> None:
        """Forget what is staged, if anything is."""
        self._turn(ticket)
        self._held = None

    def _turn(self, ticket: int) -> None:
        if ticket != self._ticket + 1:
            raise RuntimeError(f"ticket {ticket} came after {self._ticket}: experts would move out of order")
        self._ticket = ticket

    def _rank(self, slot: int) -> int:
        return slot // self._per_rank

    def _together(self, part: Callable[[], _Answer]) -> list[_Answer]:
        """Do this rank's part and hear of the others'. Raises `MoveFailed` on all where one failed."""
        try:
            mine = part()
        except GroupLost:
            raise
        except Exception as error:  # whatever it is, all ranks must know, or they wait for this one
            mine = _Answer(why=f"{type(error).__name__}: {error}")
        bodies = self._group.gather_bytes(msgspec.msgpack.encode(mine), timeout_s=self._stage_s)
        answers = [msgspec.msgpack.decode(body, type=_Answer) for body in bodies]
        for rank, answer in enumerate(answers):
            if answer.why:
                message = f"Rank {rank} could not stage its experts: {answer.why}. Nothing has changed."
                raise MoveFailed(Cause(code="stage_failed", message=message, detail={"rank": rank}))
        return answers

    def _admit(self, moves: LayerMoves) -> _Answer:
        """Do the moves fit to what is live? Raises `ValueError`."""
        if self._held is not None:
            raise ValueError(f"layer {self._held.layer} is staged and neither applied nor dropped")
        if not 0 <= moves.layer < len(self._layers):
            raise ValueError(f"there is no layer {moves.layer} with experts")
        live = self._layers[moves.layer].map
        made = list(live)
        for move in moves.moves:
            if live[move.source] != move.expert:
                raise ValueError(f"slot {move.source} holds expert {live[move.source]}, not {move.expert}")
            made[move.slot] = move.expert
        if made != moves.map or set(made) != set(live):
            raise ValueError("the moves do not make the new map of the map that is live")
        return _Answer()

    def _transfer(self, *, slot: int, source: int, layer: int) -> Transfer:
        mine = self._group.rank
        if self._rank(source) == mine:
            tensors: Sequence[Tensor] = self._layers[layer].tensors
            row = source % self._per_rank
        else:
            tensors, row = self._buffers, slot % self._per_rank
        return Transfer(self._rank(source), self._rank(slot), [tensor[row] for tensor in tensors])

    def _received(self, moves: LayerMoves) -> _Answer:
        """Copy what stays on this rank, and checksum both what it sent and what it has staged."""
        sent: dict[int, str] = {}
        staged: dict[int, str] = {}
        live, mine = self._layers[moves.layer].tensors, self._group.rank
        for move in moves.moves:
            here, there = self._rank(move.source) == mine, self._rank(move.slot) == mine
            source, row = move.source % self._per_rank, move.slot % self._per_rank
            if here:
                sent[move.slot] = checksum(tensor[source] for tensor in live)
            if here and there:
                for buffer, tensor in zip(self._buffers, live, strict=True):
                    buffer[row].copy_(tensor[source])
            if there:
                staged[move.slot] = checksum(buffer[row] for buffer in self._buffers)
        return _Answer(sent=sent, staged=staged)


def _check(layers: Sequence[ExpertRows]) -> None:
    """One layer's buffers must do for all, and a row must be one piece of memory. Raises `LoadError`."""
    if not layers:
        raise refused("no_moe_layer", "There is nothing to balance: the model has no layer with experts.")
    shapes = [[(tensor.shape, tensor.dtype) for tensor in layer.tensors] for layer in layers]
    for n, layer in enumerate(layers):
        if shapes[n] != shapes[0]:
            raise refused(
                "expert_views", f"The experts of layer {n} have other shapes than those of layer 0."
            )
        if not all(tensor.is_contiguous() for tensor in layer.tensors):
            raise refused(
                "expert_views", f"The experts of layer {n} are not contiguous in memory, so can't be moved."
            )
