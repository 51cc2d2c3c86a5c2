"""The stand-in's "hccl": collectives of npu tensors, carried by gloo between copies in the CPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def connect(options: Any, _pg_options: Any) -> StandinHccl:
    """A group as `torch.distributed.new_group` asks for it."""
    gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)
    return StandinHccl(gloo, options.group_rank, options.group_size)


class StandinHccl(dist.ProcessGroup):
    """Refuses what HCCL refuses: tensors of another device, and such as are not contiguous."""

    def __init__(self, gloo: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._gloo = gloo
        self._name = "hccl stand-in"

    def getBackendName(self) -> str:
        return "hccl"

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self._staged(tensors, tensors, lambda cpu, _: self._gloo.allreduce(cpu, opts))

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self._staged(tensors, tensors, lambda cpu, _: self._gloo.broadcast(cpu, opts))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        return self._staged(inputs, outputs[0], lambda cpu, out: self._gloo.allgather([out], cpu, opts))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        return self._staged(
            [input], [output], lambda cpu, out: self._gloo._allgather_base(out[0], cpu[0], opts)
        )

    def all_to_all_single(
        self, output: Tensor, input: Tensor, received: list[int], sent: list[int], opts: Any = None
    ) -> dist.Work:
        return self._staged(
            [input], [output], lambda cpu, out: self._gloo.alltoall_base(out[0], cpu[0], received, sent, opts)
        )

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        return self._staged(tensors, [], lambda cpu, _: self._gloo.send(cpu, rank, tag))

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> dist.Work:
        return self._staged([], tensors, lambda _, out: self._gloo.recv(out, rank, tag))

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._gloo.barrier(opts)

    def _staged(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        start: Callable[[list[Tensor], list[Tensor]], dist.Work],
    ) -> dist.Work:
        """Copy ``inputs`` to the CPU, start there, and copy ``outputs`` back when it is waited for."""
        for tensor in (*inputs, *outputs):
            if tensor.device.type != "npu" or not tensor.is_contiguous():
                raise RuntimeError(f"hccl: not a contiguous npu tensor: {tensor.stride()} on {tensor.device}")
        copies = [tensor.cpu() for tensor in inputs]
        results = copies
        if inputs is not outputs:
            results = [torch.empty_like(tensor, device="cpu") for tensor in outputs]
        return _Staged(start(copies, results), copies, list(zip(outputs, results, strict=True)))


class _Staged(dist.Work):
    def __init__(self, work: Any, copies: list[Tensor], results: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._work = work
        self._copies = copies  # gloo reads them until it is done
        self._results = results

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._work.wait(timeout)
        for device, cpu in self._results:
            device.copy_(cpu)
        return True
