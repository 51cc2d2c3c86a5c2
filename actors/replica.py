"""A copy of the cluster's state that follows the log: every actor that needs the state has its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from events.drivers import Driver
from events.errors import LogIncomplete
from events.feed import CommitFeed, Subscription
from events.reader import LogReader
from events.record import Committed
from projections.evolve import apply
from projections.snapshot import load_state
from projections.state import ClusterState

logger = logging.getLogger("cuebook.replica")


class Paths(NamedTuple):
    """Where a node keeps its record, and the SQLite that opens its log.

    One library for the log in the whole process: two copies of SQLite in one process drop each other's
    file locks (sqlite.org/howtocorrupt.html, "multiple copies of SQLite linked into the same application").
    """

    log: Path
    snapshots: Path
    driver: Driver

    def reader(self) -> LogReader:
        """A new reading connection to the log."""
        return LogReader.open(self.log, driver=self.driver)


def follow(
    paths: Paths,
    feed: CommitFeed,
    deliver: Callable[[Sequence[Committed]], None],
    on_rewind: Callable[[int], None],
) -> tuple[ClusterState, Subscription]:
    """The state now, and from here on every decision to ``deliver``, which must not block.

    ``deliver`` is called on other threads; the state is the caller's own, moved on with `fold`. After
    ``on_rewind(decision_id)`` the state must be loaded anew: it goes on from another history there.
    """
    while True:
        with paths.reader() as reader:
            rewinds = reader.rewinds()
            state = load_state(reader, paths.snapshots)
            after = reader.decision_id_at(state.seq)
            if reader.rewinds() != rewinds:
                continue  # the state may be of one history and the decision of another
        try:
            return state, feed.subscribe(after, deliver, on_rewind, rewinds)
        except LogIncomplete:
            logger.info("The log began after a base while its state was loaded: loading it again")


def fold(state: ClusterState, committed: Sequence[Committed]) -> None:
    """Move ``state`` on by decisions; events that it has already are passed over."""
    for decision in committed:
        for recorded in decision.events:
            if recorded.seq > state.seq:
                apply(state, recorded.seq, recorded.epoch, recorded.at, recorded.event)
