"""Experts moved in a group of runners, as the supervisor of rank 0 has them moved."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import TypeVar

from support.runner_client import RunnerClient

from engines.contract import ExpertShard
from engines.experts.maps import check, initial
from engines.wire import ApplyLayer, DropStaging, ExpertLoad, LayerApplied, LayerStaged, StageLayer
from events.experts import EplbSettings, ExpertDispatch, ExpertFormat, LayerMoves, SlotMove

M = TypeVar("M")

_numbers = itertools.count(1)


def moves_to(layer: int, old: Sequence[int], new: Sequence[int]) -> LayerMoves:
    """What makes the map ``new`` of ``old``; each expert comes from its first slot."""
    changed = [slot for slot in range(len(old)) if old[slot] != new[slot]]
    return LayerMoves(
        layer, list(new), [SlotMove(slot, new[slot], list(old).index(new[slot])) for slot in changed]
    )


def random_map(chance: random.Random, experts: int, slots: int, ranks: int) -> list[int]:
    """Any placement that is allowed."""
    while True:
        new = [*range(experts), *(chance.randrange(experts) for _ in range(slots - experts))]
        chance.shuffle(new)
        try:
            check(new, experts, ranks)
        except ValueError:
            continue
        return new


def balanced_shard(
    layers: int,
    experts: int,
    ranks: int,
    *,
    redundant: int,
    dispatch: ExpertDispatch = "shared",
    format: ExpertFormat = "plain",
    **settings: object,
) -> ExpertShard:
    """A shard with EPLB and the first placement."""
    slots = experts + redundant
    return ExpertShard(
        dispatch=dispatch,
        format=format,
        slots=slots,
        eplb=EplbSettings(redundant_experts=redundant, **settings),  # type: ignore[arg-type]
        maps=[initial(experts, slots, ranks)] * layers,
    )


class Mover:
    """Orders moves of rank 0's runner and keeps the maps that they make."""

    def __init__(self, lead: RunnerClient, shard: ExpertShard) -> None:
        self.lead = lead
        self.maps = [list(layer) for layer in shard.maps]
        self.epoch = shard.epoch

    def stage(self, layer: int, new: Sequence[int], timeout: float = 60) -> LayerStaged:
        """Stage a layer and wait for the answer."""
        name = self.order_stage(layer, new)
        return self.answer(LayerStaged, name, timeout)

    def order_stage(self, layer: int, new: Sequence[int]) -> str:
        """Stage a layer; the name of the migration."""
        name = f"m{next(_numbers)}"
        self.lead.channel.send(StageLayer(migration_id=name, moves=moves_to(layer, self.maps[layer], new)))
        return name

    def apply(self, name: str, layer: int, new: Sequence[int], timeout: float = 60) -> LayerApplied:
        """Apply a staged layer and wait for the answer."""
        self.order_apply(name, layer, new)
        return self.answer(LayerApplied, name, timeout)

    def order_apply(self, name: str, layer: int, new: Sequence[int]) -> None:
        """Apply a staged layer."""
        self.epoch += 1
        self.maps[layer] = list(new)
        self.lead.channel.send(
            ApplyLayer(migration_id=name, layer=layer, epoch=self.epoch, map=self.maps[layer])
        )

    def drop(self, name: str) -> None:
        """Abort a migration."""
        self.lead.channel.send(DropStaging(migration_id=name))

    def migrate(self, layer: int, new: Sequence[int]) -> tuple[LayerStaged, LayerApplied]:
        """Stage and apply; the checksums and the digests must agree."""
        staged = self.stage(layer, new)
        assert staged.cause is None, staged.cause
        assert all(slot.sent == slot.staged for slot in staged.slots)
        applied = self.apply(staged.migration_id, layer, new)
        assert len(set(applied.digests)) == 1
        return staged, applied

    def answer(self, kind: type[M], name: str, timeout: float = 60) -> M:
        """The answer of a kind to a migration."""

        def found() -> list[M]:
            return [
                m
                for m in self.lead.messages
                if isinstance(m, kind) and m.migration_id == name  # type: ignore[attr-defined]
            ]

        self.lead.wait(lambda: bool(found()), timeout)
        return found()[-1]

    def windows(self) -> list[ExpertLoad]:
        """The load windows so far."""
        return [message for message in self.lead.messages if isinstance(message, ExpertLoad)]

    def window_after(self, n: int, timeout: float = 60) -> ExpertLoad:
        """The first window beyond the first ``n``."""
        self.lead.wait(lambda: len(self.windows()) > n, timeout)
        return self.windows()[n]
