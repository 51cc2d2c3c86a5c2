"""The projector: the one writer of projections.db. It follows the log at its own pace."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.replica import Paths
from events.errors import LogRewound
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


class CatchUp(NamedTuple):
    """Write everything that the log has by now; asked, it answers with the position when done."""


class Projector(Actor):
    """Woken by the feed, it takes the decisions from the file: nothing queues up while it is behind."""

    def __init__(self, paths: Paths, projections: Path, feed: CommitFeed) -> None:
        super().__init__()
        self._paths = paths
        self._path = projections
        self._feed = feed
        self._due = False

    def started(self) -> None:
        """Open the tables, or make them anew where their form is another one, and catch up."""
        self._reader = self._paths.reader()
        self._open()
        self._catch_up()
        self._subscription = self._feed.subscribe(
            self._mirror.position.decision_id, self._wake, lambda _: self._wake([])
        )

    def stopping(self) -> None:
        """Write what is there, then close."""
        self._subscription.close()
        self._catch_up()
        self._mirror.close()
        self._reader.close()

    def receive(self, message: Any) -> int:
        """Catch up, and answer with the position."""
        if not isinstance(message, CatchUp):
            raise TypeError(f"the projector takes no {type(message).__name__}")
        self._due = False
        self._catch_up()
        if self._mirror.position.seq - self._snapshot_seq >= SNAPSHOT_EVERY:
            self._save_snapshot()
        return self._mirror.position.decision_id

    def _open(self) -> None:
        self._rewinds = self._reader.rewinds()
        self._mirror = Mirror.open(self._path, self._reader, self._paths.snapshots)
        self._snapshot_seq = self._mirror.position.seq

    def _catch_up(self) -> None:
        """Write what is new. Where the log went back meanwhile, the tables are of another history: anew."""
        while True:
            after = self._mirror.position.decision_id
            batch = list(self._reader.decisions(after=after, limit=BATCH))
            if self._reader.rewinds() != self._rewinds:
                self._mirror.close()
                self._open()
            elif batch:
                self._mirror.apply(batch)
            else:
                return

    def _wake(self, committed: Sequence[Committed]) -> None:  # noqa: ARG002
        if not self._due:
            self._due = True
            self.after(LAG_S, CatchUp())

    def _save_snapshot(self) -> None:
        """A snapshot is a cache: where it can't be written, the next start reads more of the log."""
        seq = self._mirror.position.seq
        self._snapshot_seq = seq
        try:
            save(self._reader, self._paths.snapshots, seq)
        except (OSError, LogRewound):
            logger.exception("No snapshot could be written at event %d", seq)
