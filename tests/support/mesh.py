"""Ordering cores with logs in memory, driven message by message."""

from __future__ import annotations

from typing import TypeVar

from actors.ordering import interface as io
from actors.ordering import messages as msg
from actors.ordering.core import Core
from actors.ordering.epochs import NO_EPOCH, Epoch, Run

M = TypeVar("M", bound=msg.Message)


class MemoryLog:
    """A log of (epoch, body); implements `actors.ordering.interface.LogView`."""

    def __init__(self, *runs: tuple[Epoch, int]) -> None:
        self.rows: list[tuple[Epoch, bytes]] = []
        self.base = 0
        """Where its past is still to come: the index that it begins after."""
        for epoch, length in runs:
            self.write(epoch, length)

    def write(self, epoch: Epoch, length: int = 1) -> None:
        """Append entries as the master of ``epoch`` does."""
        for _ in range(length):
            self.rows.append((epoch, f"{len(self.rows) + 1} {epoch.n} {epoch.node_id} {epoch[2]}".encode()))

    def take(self, entries: list[bytes]) -> None:
        """Append entries as a follower does."""
        for entry in entries:
            _, n, node_id, incarnation = entry.decode().split()
            self.rows.append((Epoch(int(n), node_id, incarnation), entry))

    def last(self) -> tuple[Epoch, int]:
        return (self.rows[-1][0] if self.rows else NO_EPOCH), len(self.rows)

    def runs(self) -> list[Run]:
        runs: list[Run] = []
        for index, (epoch, _) in enumerate(self.rows, 1):
            if runs and runs[-1].epoch == epoch:
                runs[-1] = runs[-1]._replace(last=index)
            else:
                runs.append(Run(epoch, index, index))
        return runs

    def begins(self) -> int:
        return self.base

    def entries(self, after: int, limit: int) -> list[bytes]:
        assert after >= self.base, "the past is still to come"
        return [body for _, body in self.rows[after : after + limit]]


class Lone:
    """One core whose messages go nowhere: the test plays the others."""

    def __init__(self, node_id: str, log: MemoryLog | None = None, promised: int = 0) -> None:
        self.now = 0.0
        self.log = log or MemoryLog()
        self.promised = promised
        self.effects: list[io.Effect] = []
        self.core = Core(io.Member(node_id, "run"), promised, self.log, self.now)

    def put(self, event: io.Input) -> list[io.Effect]:
        """What the core has to say to an input, once it is carried out, with what the ticks due now add."""
        before = len(self.effects)
        self._carry_out(event)
        while self.core.next_deadline() <= self.now:
            self._carry_out(io.Tick())
        return self.effects[before:]

    def hear(self, node_id: str, message: msg.Message) -> list[io.Effect]:
        return self.put(io.Received(node_id, message))

    def wait(self, seconds: float) -> list[io.Effect]:
        """Let time pass, with the ticks that the core asks for."""
        before, until = len(self.effects), self.now + seconds
        while self.core.next_deadline() <= until:
            self.now = max(self.now, self.core.next_deadline())
            self._carry_out(io.Tick())
        self.now = until
        return self.effects[before:]

    def commit(self, length: int = 1) -> list[io.Effect]:
        """The master here has decided."""
        assert self.core.epoch is not None
        self.log.write(self.core.epoch, length)
        return self.put(io.Committed(len(self.log.rows)))

    def _carry_out(self, event: io.Input) -> None:
        for effect in self.core.handle(self.now, event):
            self.effects.append(effect)
            match effect:
                case io.Persist(promised):
                    self.promised = promised
                case io.Append(entries):
                    self.log.take(entries)
                case io.Rewind():
                    del self.log.rows[effect.fork :]
                    self.log.take(effect.entries)
                case _:
                    pass


def sent(effects: list[io.Effect], kind: type[M]) -> list[tuple[str, M]]:
    """The messages of a kind among effects, with whom they go to."""
    return [
        (effect.node_id, effect.message)
        for effect in effects
        if isinstance(effect, io.Send) and isinstance(effect.message, kind)
    ]


def of(effects: list[io.Effect], *kinds: type[object]) -> list[io.Effect]:
    """The effects of some kinds, in order."""
    return [effect for effect in effects if isinstance(effect, kinds)]


def status(number: int, **changes: object) -> msg.Status:
    """A node without a master and with an empty log, unless ``changes`` say otherwise."""
    fields: dict[str, object] = {
        "number": number,
        "promised": 0,
        "epoch": None,
        "genesis": NO_EPOCH,
        "last_epoch": NO_EPOCH,
        "index": 0,
        "followers": 0,
        "seniority": 0.0,
    }
    return msg.Status(**{**fields, **changes})  # pyright: ignore[reportArgumentType]
