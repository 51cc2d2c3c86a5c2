"""A group of ranks over `torch.distributed`: gloo for control, and for data what goes with the device."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from engines.contract import GroupLost, GroupSpec
from engines.link import Link, address, agree, listen, meet, unreachable
from engines.refusals import refused
from engines.torch import devices
from events.values import Cause

COLLECTIVE_S = 600.0
"""Seconds after which a collective gives up. Deadlines on progress end a rank that hangs long before."""
_BROKEN = ("gloo/", "pair closure", "timed out", "nccl", "hccl")
"""What stands in the errors of collectives whose other ranks are gone or don't answer."""
_PROBE_BYTES = 4 << 20
_PROBES = 3


@dataclass(slots=True)
class TorchGroup:
    """The other ranks. ``links`` are those of `engines.link.meet`.

    All ranks issue the same collectives in the same order: what gloo answers to others is the end of the
    process. ``control`` takes CPU tensors, ``data`` those of ``device``. ``bandwidth`` is in bytes per
    second: what the slowest rank receives while all of them send.
    """

    rank: int
    world: int
    spec: GroupSpec
    links: list[Link]
    control: dist.ProcessGroup
    data: dist.ProcessGroup
    kind: devices.DeviceKind
    device: torch.device
    bandwidth: float = 0.0
    notes: list[str] = field(default_factory=list[str])

    def synchronize(self) -> None:
        """Wait until the device has computed what it was asked."""
        self.kind.synchronize(self.device)

    def gather(self, rows: Tensor, *, timeout_s: float = COLLECTIVE_S) -> Tensor:
        """The CPU tensors of all ranks, of the same shape and dtype, stacked by rank.

        A collective of the control group. Raises `GroupLost`, also where a rank does not come in time.
        """
        found = torch.empty((self.world, *rows.shape), dtype=rows.dtype)
        with collective():
            gather = cast("Any", dist.all_gather)
            gather(list(found), rows.contiguous(), group=self.control, async_op=True).wait(
                timedelta(seconds=timeout_s)
            )
        return found

    def gather_bytes(self, body: bytes, *, timeout_s: float = COLLECTIVE_S) -> list[bytes]:
        """What each rank has to say, by rank. As `gather`."""
        sizes: list[int] = cast("Any", self.gather(torch.tensor(len(body)), timeout_s=timeout_s)).tolist()
        padded = bytearray(body.ljust(max(1, *sizes), b"\0"))
        found = self.gather(torch.frombuffer(padded, dtype=torch.uint8), timeout_s=timeout_s).numpy()
        return [row[:size].tobytes() for row, size in zip(found, sizes, strict=True)]


def broken(error: RuntimeError) -> Cause | None:
    """The cause where this is the error of a collective that can't complete, else None."""
    text = str(error)
    if not isinstance(error, dist.DistError) and not any(word in text.lower() for word in _BROKEN):
        return None
    return Cause(
        code="ring_broken", message=f"A collective failed: {text}. Another rank has ended, or hangs."
    )


@contextlib.contextmanager
def collective() -> Generator[None]:
    """Raises `GroupLost` for the error of a collective in it."""
    try:
        yield
    except RuntimeError as error:
        cause = broken(error)
        if cause is None:
            raise
        raise GroupLost(cause) from error


def connect(spec: GroupSpec, lost: Callable[[Cause], None]) -> TorchGroup:
    """Meet the other ranks and make both groups with them. Raises `LoadError`."""
    if spec.strategy != "expert":
        raise refused(
            "strategy_unsupported",
            f"The torch engine shares a model between ranks by experts alone, not with the strategy "
            f"{spec.strategy!r}: place it with the strategy 'expert', on one rank, or on another engine.",
        )
    kind, device = devices.device_kind(spec.device_id), devices.torch_device(spec.device_id)
    _use_interface(spec)
    links = meet(spec, lost)
    try:
        control = _control_group(spec, links)
        data = dist.new_group(backend=kind.backend, timeout=timedelta(seconds=_data_timeout(spec, kind)))
        assert isinstance(data, dist.ProcessGroup)
        group = TorchGroup(spec.rank, len(spec.hosts), spec, links, control, data, kind, device)
        _check(group)
        group.bandwidth = _measured(group)
    except RuntimeError as error:
        raise unreachable(
            f"Rank {spec.rank} at {spec.hosts[spec.rank]} can't join the {kind.backend} group: {error}. "
            "Check that the nodes reach each other and that no firewall is between them."
        ) from error
    for made in (control, data) if kind.backend != "hccl" else (control,):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=COLLECTIVE_S), made)  # pyright: ignore
    return group


def _data_timeout(spec: GroupSpec, kind: devices.DeviceKind) -> float:
    """What a group is made with, HCCL keeps to; the others are given more once the ranks have met."""
    return COLLECTIVE_S if kind.backend == "hccl" else spec.timeout_s


def _use_interface(spec: GroupSpec) -> None:
    """Have the backends talk over the interface that has this rank's address. Raises `LoadError`."""
    ip, _ = address(spec.hosts[spec.rank])
    found = [
        name
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.address == ip for entry in entries)
    ]
    if not found:
        raise unreachable(f"No network interface of rank {spec.rank} has its address {ip}.")
    os.environ["GLOO_SOCKET_IFNAME"] = found[0]
    os.environ["NCCL_SOCKET_IFNAME"] = f"={found[0]}"
    os.environ["HCCL_IF_IP"] = ip


def _control_group(spec: GroupSpec, links: list[Link]) -> dist.ProcessGroup:
    """The default group, over a store at rank 0's address, which `meet` has left."""
    timeout = timedelta(seconds=spec.timeout_s)
    ip, port = address(spec.hosts[0])
    listener: socket.socket | None = listen(spec.hosts[0]) if spec.rank == 0 else None
    agree(spec, links, "")
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        ip,
        port,
        len(spec.hosts),
        listener is not None,
        timeout,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    dist.init_process_group("gloo", store=store, rank=spec.rank, world_size=len(spec.hosts), timeout=timeout)
    control = dist.group.WORLD
    assert isinstance(control, dist.ProcessGroup)
    return control


def _check(group: TorchGroup) -> None:
    for made, device in ((group.control, torch.device("cpu")), (group.data, group.device)):
        total = torch.ones(1, dtype=torch.int64, device=device)
        dist.all_reduce(total, group=made)
        if int(total) != group.world:
            raise unreachable("The ranks met, but their first sum is wrong: another group is in it.")


def _measured(group: TorchGroup) -> float:
    """Bytes per second from each rank to the next, all at once: the slowest, the same answer on all."""
    sent = torch.zeros(_PROBE_BYTES, dtype=torch.uint8, device=group.device)
    received = torch.empty_like(sent)
    after, before = (group.rank + 1) % group.world, (group.rank - 1) % group.world
    best = 0.0
    for _ in range(_PROBES):
        began = time.perf_counter()
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, after, group=group.data),
                dist.P2POp(dist.irecv, received, before, group=group.data),
            ]
        )
        for work in works:
            work.wait()
        group.synchronize()
        best = max(best, _PROBE_BYTES / (time.perf_counter() - began))
    slowest = torch.tensor([best], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MIN, group=group.control)
    return float(slowest)
