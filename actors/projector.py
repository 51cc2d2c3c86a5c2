"""The projector: the one writer of projections.db. It follows the log at its own pace."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.deferred import Deferred
from actors.replica import Paths
from events.errors import LogIncomplete, LogRewound
from events.feed import CommitFeed
from events.record import Committed
from projections.mirror import Mirror
from projections.snapshot import save

logger = logging.getLogger("cuebook.projector")

SNAPSHOT_EVERY = 20_000
"""Events between two snapshots of the state."""
BATCH = 500
"""Decisions in one transaction while it catches up."""
LAG_S = 0.1
"""Seconds that it waits for more before it writes, so that a busy node pays for few transactions."""
PAST_S = 1.0
"""Seconds between two looks at a log that lacks its past."""


class CatchUp(NamedTuple):
    """Write everything that the log has by now; asked, it answers with the position when done.

    While the log lacks its past there is nothing to write, and the position is 0.
    """


class _GoOn(NamedTuple):
    """There is more to write."""


class Projector(Actor):
    """Woken by the feed, it takes the decisions from the file: nothing queues up while it is behind.

    The tables begin with decision 1, so they wait for a log's past.
    """

    def __init__(self, paths: Paths, projections: Path, feed: CommitFeed) -> None:
        super().__init__()
        self._paths = paths
        self._path = projections
        self._feed = feed
        self._mirror: Mirror | None = None
        self._due = False
        self._asked: list[Deferred[int]] = []

    def started(self) -> None:
        """Follow the log; what it has already is written next."""
        self._reader = self._paths.reader()
        self._subscription = self._feed.subscribe(
            self._reader.last_decision(), self._wake, lambda _: self._wake([])
        )
        self.mailbox.put_system(_GoOn())

    def stopping(self) -> None:
        """Write what has just come; a start goes on with the rest."""
        self._subscription.close()
        self._write()
        self._close_tables()
        self._reader.close()

    def receive(self, message: Any) -> Deferred[int] | None:
        """Write a batch, and answer with the position once there is no more."""
        answer = None
        if isinstance(message, CatchUp):
            self._due = False
            answer = Deferred[int]()
            self._asked.append(answer)
        elif not isinstance(message, _GoOn):
            raise TypeError(f"the projector takes no {type(message).__name__}")
        self._advance()
        return answer

    def _advance(self) -> None:
        if self._write():
            self.mailbox.put_system(_GoOn())
            return
        position = self._mirror.position.decision_id if self._mirror is not None else 0
        asked, self._asked = self._asked, []
        for answer in asked:
            answer.resolve(position)
        if self._mirror is None:
            self._catch_up_in(PAST_S)

    def _write(self) -> bool:
        """Write the next batch; whether there was one."""
        try:
            if self._reader.base() is None:
                return self._write_batch()
        except LogIncomplete:
            logger.info("The log began after a base while it was being read")
        self._close_tables()
        return False

    def _write_batch(self) -> bool:
        """Where the log went back meanwhile, the tables are of another history: they are opened anew."""
        mirror = self._mirror or self._open()
        batch: list[Committed] = []
        with suppress(LogRewound):
            batch = list(self._reader.decisions(after=mirror.position.decision_id, limit=BATCH))
        if self._reader.rewinds() != self._rewinds:
            self._close_tables()
            return True
        mirror.apply(batch)
        if mirror.position.seq - self._snapshot_seq >= SNAPSHOT_EVERY:
            self._save_snapshot(mirror.position.seq)
        return bool(batch)

    def _open(self) -> Mirror:
        """Open the tables, or make them anew where their form is another one."""
        self._rewinds = self._reader.rewinds()
        self._mirror = Mirror.open(self._path, self._reader, self._paths.snapshots)
        self._snapshot_seq = self._mirror.position.seq
        return self._mirror

    def _close_tables(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None

    def _wake(self, committed: Sequence[Committed]) -> None:  # noqa: ARG002
        self._catch_up_in(LAG_S)

    def _catch_up_in(self, seconds: float) -> None:
        if not self._due:
            self._due = True
            self.after(seconds, CatchUp())

    def _save_snapshot(self, seq: int) -> None:
        """A snapshot is a cache: where it can't be written, the next start reads more of the log."""
        self._snapshot_seq = seq
        try:
            save(self._reader, self._paths.snapshots, seq)
        except (OSError, LogRewound):
            logger.exception("No snapshot could be written at event %d", seq)
