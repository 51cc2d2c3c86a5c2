"""Ranks of a torch group as child processes of a test, each running the same function."""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from support.served import free_port

from engines.cards import card_from_directory
from engines.contract import ExpertShard, GroupSpec, LoadSpec
from events.values import Cause

PATIENCE_S = 60.0


class TorchRanks:
    """``world`` processes that meet in a group and call ``work(group, pipe, *arguments)``.

    What a rank returns, or the name of its exception with its text, is its answer. `pipes` reach the ranks.
    """

    def __init__(self, world: int, work: Callable[..., Any], *arguments: Any) -> None:
        spawn = mp.get_context("spawn")
        hosts = [f"127.0.0.1:{free_port()}" for _ in range(world)]
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"
        for rank in range(world):
            near, far = spawn.Pipe()
            spec = GroupSpec(
                group_id="g",
                rank=rank,
                hosts=hosts,
                strategy="expert",
                timeout_s=PATIENCE_S,
                device_id="cpu:0",
            )
            process = spawn.Process(target=_rank, args=(spec, far, work, arguments), daemon=True)
            process.start()
            far.close()
            self.pipes.append(near)
            self.processes.append(process)
        if before is None:
            del os.environ["OMP_NUM_THREADS"]

    def __enter__(self) -> TorchRanks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.is_alive():
                psutil.Process(process.pid).kill()
        for process in self.processes:
            process.join(10)

    def hear(self, rank: int, timeout: float = PATIENCE_S) -> Any:
        """The next thing that a rank sent or returned; EOFError where it has ended."""
        assert self.pipes[rank].poll(timeout), f"rank {rank} said nothing for {timeout} s"
        return self.pipes[rank].recv()

    def answers(self, timeout: float = PATIENCE_S) -> list[Any]:
        """The answer of each rank."""
        return [self.hear(rank, timeout) for rank in range(len(self.processes))]


def run(world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The answers of ranks that do ``work`` and end."""
    with TorchRanks(world, work, *arguments) as ranks:
        return ranks.answers()


def load_spec(path: Path, experts: ExpertShard | None = None) -> LoadSpec:
    """All layers of a model, in float32."""
    card = card_from_directory(path)
    return LoadSpec(
        card=card,
        path=str(path),
        dtype="float32",
        context=1024,
        batch=4,
        start_layer=0,
        end_layer=card.n_layers,
        prefill_chunk=64,
        experts=experts,
    )


def _rank(spec: GroupSpec, pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    from engines.torch.group import connect

    def lost(cause: Cause) -> None:
        print(cause.message, file=sys.stderr)

    try:
        answer = work(connect(spec, lost), pipe, *arguments)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    pipe.send(answer)
    os._exit(0)  # other ranks may be gone: what gloo waits for at the end of a process may never come
