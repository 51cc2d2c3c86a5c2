"""Rows of experts from rank to rank: point-to-point transfers in chunks, in one order for all ranks."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from engines.torch.group import TorchGroup, collective

_CHUNK = 32
"""Transfers in flight at once: hundreds of them in one batch have hung NCCL."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """``tensors`` go from rank ``source`` to rank ``target``: those to send, or those to receive into.

    Contiguous, on the group's device; empty on a rank that is neither.
    """

    source: int
    target: int
    tensors: Sequence[Tensor]


class Communicator:
    """Moves rows over the data group. All ranks call its methods alike, with the same transfers."""

    def __init__(self, group: TorchGroup) -> None:
        self._group = group

    @property
    def needs_reservation(self) -> bool:
        """True where the backend takes buffers of its own at the first exchange with each rank.

        NCCL does; HCCL has taken them when the group was made.
        """
        return dist.get_backend(self._group.data) == "nccl"

    def reserve(self) -> None:
        """Have the backend take its buffers now, while it shows whether there is room for them.

        Raises `GroupLost`.
        """
        rank, world = self._group.rank, self._group.world
        rows = torch.zeros(world, dtype=torch.int64, device=self._group.device)
        pairs = [(a, b) for a in range(world) for b in range(world) if a != b]
        transfers = [Transfer(a, b, [rows[b if a == rank else a]]) for a, b in pairs]
        self.exchange(transfers, timeout_s=self._group.spec.timeout_s)

    def exchange(self, transfers: Sequence[Transfer], *, timeout_s: float) -> None:
        """Carry all transfers. Raises `GroupLost` where one takes longer than ``timeout_s``."""
        for start in range(0, len(transfers), _CHUNK):
            operations = [
                operation
                for transfer in transfers[start : start + _CHUNK]
                for operation in self._operations(transfer)
            ]
            if operations:
                with collective():
                    for work in dist.batch_isend_irecv(operations):
                        work.wait(timedelta(seconds=timeout_s))
        self._group.synchronize()

    def _operations(self, transfer: Transfer) -> list[dist.P2POp]:
        rank, data = self._group.rank, self._group.data
        if transfer.source == transfer.target:
            return []
        if rank == transfer.source:
            return [
                dist.P2POp(dist.isend, tensor, transfer.target, group=data) for tensor in transfer.tensors
            ]
        if rank == transfer.target:
            return [
                dist.P2POp(dist.irecv, tensor, transfer.source, group=data) for tensor in transfer.tensors
            ]
        return []
