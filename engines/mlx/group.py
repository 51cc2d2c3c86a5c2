"""A group of ranks over `mx.distributed`: the ring over TCP, or JACCL over RDMA where there is some."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import mlx.core as mx

from engines.contract import GroupSpec, LoadError
from engines.link import Link, agree, check_ways, meet, unreachable
from engines.mlx import library, rdma
from events.values import Cause

T = TypeVar("T")

_LAST_CONNECTS_S = 0.1
"""MLX's ring starts at its last rank, which would sleep a second if the first were not listening yet."""


@dataclass(slots=True)
class MlxGroup:
    """The other ranks. ``links`` are those of `engines.link.meet`; collectives use MLX's global group."""

    rank: int
    world: int
    spec: GroupSpec
    links: list[Link]
    comm: mx.distributed.Group
    notes: list[str] = field(default_factory=list[str])


def connect(spec: GroupSpec, lost: Callable[[Cause], None]) -> MlxGroup:
    """Meet the other ranks and make MLX's global group with them. Raises `LoadError`."""
    if spec.backend == "jaccl" and not rdma.devices():
        raise LoadError(
            Cause(
                code="jaccl_unavailable",
                message="JACCL was asked for, but MLX finds no RDMA device here; use the ring backend.",
            )
        )
    links = meet(spec, lost)
    comm, notes = None, list[str]()
    if spec.backend == "jaccl":
        comm, why = _try_jaccl(spec, links)
        if why:
            notes = [f"JACCL did not connect ({why}), so the ranks talk over the ring, which is slower."]
    comm = comm or _ring(spec, links)
    if library.compute(mx.distributed.all_sum(mx.array(1), group=comm, stream=mx.cpu)) != len(spec.hosts):
        raise unreachable("The ranks met, but their first sum is wrong: another group is in the ring.")
    return MlxGroup(spec.rank, len(spec.hosts), spec, links, comm, notes)


def mlx_rank(spec: GroupSpec) -> int:
    """The rank in MLX's group. mlx-lm's pipelines run from its last rank to rank 0, ours the other way."""
    return len(spec.hosts) - 1 - spec.rank if spec.strategy == "pipeline" else spec.rank


def _in_mlx_order(spec: GroupSpec, values: list[T]) -> list[T]:
    return values[::-1] if spec.strategy == "pipeline" else list(values)


def _ring(spec: GroupSpec, links: list[Link]) -> mx.distributed.Group:
    hosts = [[host] for host in _in_mlx_order(spec, spec.hosts)]
    step = -1 if spec.strategy == "pipeline" else 1
    check_ways(spec, links, (spec.rank + step) % len(hosts))
    if mlx_rank(spec) == len(hosts) - 1:
        time.sleep(_LAST_CONNECTS_S)
    try:
        with _environment(MLX_RANK=str(mlx_rank(spec)), MLX_HOSTFILE=hosts):
            return mx.distributed.init(backend="ring", strict=True)
    except RuntimeError as error:
        raise unreachable(
            f"Rank {spec.rank} at {spec.hosts[spec.rank]} can't join the ring: {error}. Check that each "
            "rank's node reaches the next one's, and that the ports are free."
        ) from error


def _try_jaccl(spec: GroupSpec, links: list[Link]) -> tuple[mx.distributed.Group | None, str]:
    """MLX's group over RDMA, and why there is none: on all ranks or on none of them."""
    matrix = [_in_mlx_order(spec, row) for row in _in_mlx_order(spec, spec.rdma_devices)]
    coordinator = _in_mlx_order(spec, spec.hosts)[0]
    comm, why = None, ""
    try:
        with _environment(
            MLX_RANK=str(mlx_rank(spec)), MLX_IBV_DEVICES=matrix, MLX_JACCL_COORDINATOR=coordinator
        ):
            comm = mx.distributed.init(backend="jaccl", strict=True)
    except RuntimeError as error:
        why = str(error)
    why = agree(spec, links, why)
    return (None if why else comm), why


@contextlib.contextmanager
def _environment(**values: object) -> Generator[None]:
    """What MLX reads when a group is made: texts as they are, anything else in a JSON file."""
    with tempfile.TemporaryDirectory(prefix="cuebook-ranks-") as directory:
        for name, value in values.items():
            if not isinstance(value, str):
                path = Path(directory) / name
                path.write_text(json.dumps(value))
                value = str(path)
            os.environ[name] = value
        try:
            yield
        finally:
            for name in values:
                del os.environ[name]


def ring_broken(error: RuntimeError) -> Cause | None:
    """The cause where a collective failed; None for any other error."""
    if not str(error).startswith(("[ring]", "[jaccl]")):
        return None
    return Cause(code="ring_broken", message=f"A collective failed: {error}. Another rank has ended.")
