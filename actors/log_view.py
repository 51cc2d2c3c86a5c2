"""The log as the ordering core reads it."""

from __future__ import annotations

from actors.ordering.epochs import NO_EPOCH, Epoch, Run
from actors.ordering.followers import MAX_BYTES
from events import ends
from events.drivers import Driver
from events.log import EventLog
from events.reader import LogReader


class OrderedLog:
    """Implements `actors.ordering.interface.LogView`; an entry is a decision with its events.

    The ends of the log are asked for at every beat, so they are read anew only where ``log`` was written.
    """

    def __init__(self, log: EventLog, driver: Driver) -> None:
        self._log = log
        self._reader = LogReader.open(log.path, driver=driver)
        self._writes = -1
        self._last = NO_EPOCH, 0
        self._begins = 0
        self._runs: list[Run] = []

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def last(self) -> tuple[Epoch, int]:
        """Epoch and id of the newest decision."""
        self._refresh()
        return self._last

    def runs(self) -> list[Run]:
        """The run map."""
        self._refresh()
        return list(self._runs)

    def begins(self) -> int:
        """The decision that the log begins after while its past is still to come, else 0."""
        self._refresh()
        return self._begins

    def _refresh(self) -> None:
        writes = self._log.writes
        if writes == self._writes:
            return
        base = self._reader.base()
        self._begins = base.decision_id if base is not None else 0
        self._refresh_runs()
        epoch = self._runs[-1].epoch if self._runs else NO_EPOCH
        self._last = epoch, self._reader.last_decision()
        self._writes = writes

    def _refresh_runs(self) -> None:
        """All of them are read only where another run is the newest."""
        newest = self._reader.newest_run()
        if newest is None:
            self._runs = []
        elif self._runs and self._runs[-1][:2] == (Epoch(*newest[:3]), newest.first):
            self._runs[-1] = _run(newest)
        else:
            self._runs = [_run(each) for each in self._reader.runs()]

    def entries(self, after: int, limit: int) -> list[bytes]:
        """The decisions after one, as other nodes append them."""
        return self._reader.entries(after, limit, MAX_BYTES)

    def bounds(self) -> tuple[int, int]:
        """The decision that the log begins after, and its last one."""
        return self.begins(), self._reader.last_decision()

    def hash_at(self, index: int) -> str:
        """The chain hash of a decision, which no other history has."""
        return self._reader.decision_hash(index)


def _run(run: ends.Run) -> Run:
    return Run(Epoch(*run[:3]), run.first, run.last)
