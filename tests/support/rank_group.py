"""Several runner processes as one group, ordered as a worker orders them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from support.runner_client import RunnerClient

from engines.cards import card_from_directory
from engines.contract import ExpertShard, GroupSpec, Strategy
from engines.wire import Connect, Load, WarmUp
from events import status


def layers_of(strategy: Strategy, n_layers: int, world: int) -> list[tuple[int, int]]:
    """Even layers for a pipeline, the first ranks one more; all layers for ranks that share each."""
    if strategy != "pipeline":
        return [(0, n_layers)] * world
    cuts = [-(-n_layers * rank // world) for rank in range(world + 1)]
    return [(cuts[rank], cuts[rank + 1]) for rank in range(world)]


class RankGroup:
    """Starts ``world`` runners; `ready` takes them through the barriers to Ready."""

    def __init__(self, world: int, engine_name: str = "mlx", devices: Sequence[str] = ()) -> None:
        self.engine_name = engine_name
        self.ranks = [
            RunnerClient(engine_name=engine_name, device_id=device) for device in devices or ["cpu:0"] * world
        ]
        self.lead, self.others = self.ranks[0], self.ranks[1:]

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for rank in self.ranks:
            rank.process.kill()
        for rank in self.ranks:
            rank.__exit__()

    def specs(self, strategy: Strategy, **changes: Any) -> list[GroupSpec]:
        hosts: list[str] = []
        for rank in self.ranks:
            rank.wait(lambda rank=rank: bool(rank.statuses))
            idle = rank.statuses[0]
            assert isinstance(idle, status.Idle)
            hosts.append(f"127.0.0.1:{idle.port}")
        common: dict[str, Any] = {"group_id": "g1", "hosts": hosts, "strategy": strategy, "timeout_s": 30.0}
        return [
            GroupSpec(rank=n, **({"device_id": rank.device_id} | common | changes))
            for n, rank in enumerate(self.ranks)
        ]

    def connect(self, strategy: Strategy) -> None:
        """The last rank is told when all others are connecting."""
        specs = self.specs(strategy)
        for rank, spec in zip(self.ranks[:-1], specs, strict=False):
            rank.channel.send(Connect(engine=self.engine_name, group=spec))
        for rank in self.ranks[:-1]:
            reached(rank, status.Connecting)
        self.ranks[-1].channel.send(Connect(engine=self.engine_name, group=specs[-1]))
        for rank in self.ranks:
            reached(rank, status.Connected)

    def load(
        self,
        path: Path,
        strategy: Strategy,
        shards: list[tuple[int, int]] | None = None,
        experts: ExpertShard | None = None,
        prefill_chunk: int = 64,
    ) -> None:
        card = card_from_directory(path)
        shards = shards or layers_of(strategy, card.n_layers, len(self.ranks))
        for rank, (start, end) in zip(self.ranks, shards, strict=True):
            rank.channel.send(
                Load(
                    card=card,
                    path=str(path),
                    engine=rank.engine_name,
                    device_id=rank.device_id,
                    dtype="float32",
                    context=1024,
                    batch=4,
                    start_layer=start,
                    end_layer=end,
                    prefill_chunk=prefill_chunk,
                    experts=experts,
                )
            )

    def ready(
        self,
        path: Path,
        strategy: Strategy,
        shards: list[tuple[int, int]] | None = None,
        experts: ExpertShard | None = None,
        prefill_chunk: int = 64,
    ) -> RankGroup:
        self.connect(strategy)
        self.load(path, strategy, shards, experts, prefill_chunk)
        for rank in self.ranks:
            reached(rank, status.Loaded)
        for rank in self.others:
            rank.channel.send(WarmUp())
        for rank in self.others:
            reached(rank, status.WarmingUp)
        self.lead.channel.send(WarmUp())
        for rank in self.ranks:
            reached(rank, status.Ready)
        return self


def reached(rank: RunnerClient, kind: type, timeout: float = 60) -> Any:
    """The first status of this kind; fails where the runner fails first."""
    rank.wait(lambda: any(isinstance(s, kind | status.Failed) for s in rank.statuses), timeout)
    found = next(s for s in rank.statuses if isinstance(s, kind | status.Failed))
    assert isinstance(found, kind), (found, rank.stderr.lines(0.1))
    return found


def failed(rank: RunnerClient, timeout: float = 30) -> status.Failed:
    """How it failed, once its process has ended."""
    deadline = time.monotonic() + timeout
    while not rank.closed:
        assert time.monotonic() < deadline, rank.statuses
        time.sleep(0.01)
    last = rank.statuses[-1]
    assert isinstance(last, status.Failed), (rank.statuses, rank.stderr.lines())
    return last
