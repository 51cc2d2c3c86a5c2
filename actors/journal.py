"""The journal: the one writer of log.db. It commits whatever waits, then publishes what is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.deferred import Deferred
from actors.refusal import Rejected, Stopped
from events.drivers import Driver
from events.feed import CommitFeed
from events.log import EventLog
from events.record import Committed
from events.to_rows import EncodedDraft

MAX_BATCH = 512
"""Decisions in one transaction."""


class Append(NamedTuple):
    """A decision to commit.

    ``reply`` gets the Committed, or Rejected where the decision is a refusal, or Stopped where the journal
    ended before it could say that the decision is on the disk. ``head`` is the seq that the log must end
    with before it: what the decision was based on.
    """

    draft: EncodedDraft
    head: int
    reply: Deferred[Committed]


class Flush(NamedTuple):
    """Ask for the head once everything before this message is committed."""


class Journal(Actor):
    """Group commit: while one fsync runs the next batch gathers, so 64 producers cost one fsync."""

    def __init__(self, path: Path, driver: Driver, feed: CommitFeed) -> None:
        super().__init__()
        self._path = path
        self._driver = driver
        self._feed = feed
        self._waiting: list[Append] = []

    def started(self) -> None:
        """Open the log, making it where there is none. Raises `events.errors.LogError`."""
        self._log = EventLog.open(self._path, driver=self._driver)

    def receive(self, message: Any) -> Any:
        """Take an `Append` or a `Flush`."""
        if isinstance(message, Flush):
            self._commit()
            return self._log.head
        self._waiting.append(message)
        if self.mailbox.empty() or len(self._waiting) >= MAX_BATCH:
            self._commit()
        return None

    def stopping(self) -> None:
        """Commit what waits, unless a commit has just failed: those who wait learn that it has not been."""
        try:
            if not self._log.failed:
                self._commit()
        finally:
            for append in self._waiting:
                append.reply.fail(Stopped(self.name, "ended before this decision was committed"))
            self._log.close()

    def _commit(self) -> None:
        if not self._waiting:
            return
        self._check_order()
        committed = self._log.append([append.draft for append in self._waiting])
        appends, self._waiting = self._waiting, []
        self._feed.publish(committed)
        for append, record in zip(appends, committed, strict=True):
            if record.rejection is not None:
                append.reply.fail(Rejected(record.rejection))
            else:
                append.reply.resolve(record)

    def _check_order(self) -> None:
        """A decision made on another history than the log's must never get in, whoever made it."""
        head = self._log.head
        for append in self._waiting:
            if append.head != head:
                raise JournalFailed(
                    f"A decision rests on event {append.head}, and the log is at {head}: its master is stale."
                )
            head += len(append.draft.bodies)


class JournalFailed(Exception):
    """The log can't be written, or was about to be written wrongly; everything restarts from the log."""
