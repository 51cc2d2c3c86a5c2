"""The log as the ordering core reads it."""

from __future__ import annotations

from pathlib import Path

from actors.ordering.epochs import NO_EPOCH, Epoch, Run
from actors.ordering.followers import MAX_BYTES
from events import ends
from events.drivers import Driver
from events.reader import LogReader


class OrderedLog:
    """Implements `actors.ordering.interface.LogView`; an entry is a decision with its events."""

    def __init__(self, path: Path, driver: Driver) -> None:
        self._reader = LogReader.open(path, driver=driver)
        self._runs: list[Run] = []

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def last(self) -> tuple[Epoch, int]:
        """Epoch and id of the newest decision."""
        epoch, index = self._reader.last()
        return (Epoch(*epoch) if epoch is not None else NO_EPOCH), index

    def runs(self) -> list[Run]:
        """The run map. It is read anew only where another run is the newest."""
        newest = self._reader.newest_run()
        if newest is None:
            return []
        run = _run(newest)
        if self._runs and self._runs[-1][:2] == run[:2]:
            self._runs[-1] = run
        else:
            self._runs = [_run(each) for each in self._reader.runs()]
        return list(self._runs)

    def begins(self) -> int:
        """The decision that the log begins after while its past is still to come, else 0."""
        base = self._reader.base()
        return base.decision_id if base is not None else 0

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
