"""A node's disk: the log with its run map, the promise, the rejected branches. It outlives the process."""

from __future__ import annotations

from typing import NamedTuple

from actors.ordering.epochs import NO_EPOCH, Epoch, Run
from events.codec import encode
from events.record import Draft


class Decision:
    """An entry of the log: a draft with its place. ``body`` is what the nodes send each other."""

    __slots__ = ("body", "command_id", "draft", "epoch", "index")

    _known: dict[bytes, Decision] = {}

    def __init__(self, index: int, epoch: Epoch, draft: Draft) -> None:
        self.index = index
        self.epoch = epoch
        self.draft = draft
        self.command_id = draft.command.command_id
        self.body = f"{index} {epoch} {encode(draft)}".encode()
        self._known[self.body] = self

    @classmethod
    def decode(cls, body: bytes) -> Decision:
        """The decision of a body, decoded once for all nodes."""
        return cls._known[body]

    @classmethod
    def forget_all(cls) -> None:
        """At the end of a run."""
        cls._known.clear()


class Branch(NamedTuple):
    """What a rewind took out of the log."""

    fork: int
    winner: Epoch
    reason: str
    decisions: list[Decision]


class Disk:
    """Implements `actors.ordering.interface.LogView`."""

    def __init__(self) -> None:
        self.promised = 0
        self.rows: list[Decision] = []
        self.commands: dict[str, Decision] = {}
        self.rejected: list[Branch] = []
        self._runs: list[Run] = []
        self._synced = 0

    def last(self) -> tuple[Epoch, int]:
        return (self.rows[-1].epoch if self.rows else NO_EPOCH), len(self.rows)

    def runs(self) -> list[Run]:
        return list(self._runs)

    def begins(self) -> int:
        return 0

    def entries(self, after: int, limit: int) -> list[bytes]:
        return [row.body for row in self.rows[after : after + limit]]

    def promise(self, n: int) -> None:
        self.promised = n

    def append(self, decisions: list[Decision]) -> None:
        """In one transaction, which is synced unless all in it are observations."""
        for decision in decisions:
            self.rows.append(decision)
            self.commands[decision.command_id] = decision
            if self._runs and self._runs[-1].epoch == decision.epoch:
                self._runs[-1] = self._runs[-1]._replace(last=len(self.rows))
            else:
                self._runs.append(Run(decision.epoch, len(self.rows), len(self.rows)))
        if not all(decision.draft.observation for decision in decisions):
            self._synced = len(self.rows)

    def rewind(self, fork: int, winner: Epoch, reason: str) -> Branch:
        branch = Branch(fork, winner, reason, self._truncate(fork))
        self.rejected.append(branch)
        return branch

    def cut_power(self) -> list[Decision]:
        """Lose what was not synced; what was lost."""
        return self._truncate(max(self._synced, 0))

    def _truncate(self, length: int) -> list[Decision]:
        gone = self.rows[length:]
        del self.rows[length:]
        for decision in gone:
            self.commands.pop(decision.command_id, None)
        self._runs = [run._replace(last=min(run.last, length)) for run in self._runs if run.first <= length]
        self._synced = min(self._synced, length)
        return gone
