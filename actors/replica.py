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


class Follower:
    """What an actor that follows the log has been sent, and how much of it its state stands on.

    An actor handles a rewind when it comes to it. By then the log may have been rewound again, and the state
    that it loads be of a later history than what still waits for it: that is void, or in the state already.
    """

    subscription: Subscription
    """Set by `follow`."""

    def __init__(self, paths: Paths, deliver: Callable[[Sequence[Committed]], None]) -> None:
        self._paths = paths
        self._deliver = deliver
        self._sent = 0
        self._taken = 0
        self._settled = 0
        """Deliveries, counted: the state owes nothing more to the first so many."""

    def send(self, committed: Sequence[Committed]) -> None:
        """Deliver; the feed calls it, in order."""
        self._sent += 1
        self._deliver(committed)

    def take(self) -> bool:
        """To be called for every delivery in order, once: whether to fold it."""
        self._taken += 1
        return self._taken > self._settled

    def load(self) -> ClusterState:
        """The state now. What was sent until now is not to be folded onto it."""
        with self._paths.reader() as reader:
            while True:
                # Whatever of an earlier history there is was sent before the log was so often rewound.
                rewinds, sent = reader.rewinds(), self._sent
                state = load_state(reader, self._paths.snapshots)
                if reader.rewinds() == rewinds:
                    self._settled = sent
                    return state

    def close(self) -> None:
        """Get no more."""
        self.subscription.close()


def follow(
    paths: Paths,
    feed: CommitFeed,
    deliver: Callable[[Sequence[Committed]], None],
    on_rewind: Callable[[int], None],
) -> tuple[ClusterState, Follower]:
    """The state now, and from here on every decision to ``deliver``, which must not block.

    ``deliver`` is called on other threads; the state is the caller's own, moved on with `fold` where
    `Follower.take` says so. After ``on_rewind(decision_id)`` it is to be loaded anew, with `Follower.load`:
    it goes on from another history there.
    """
    follower = Follower(paths, deliver)
    while True:
        with paths.reader() as reader:
            rewinds = reader.rewinds()
            state = load_state(reader, paths.snapshots)
            after = reader.decision_id_at(state.seq)
            if reader.rewinds() != rewinds:
                continue  # the state may be of one history and the decision of another
        try:
            follower.subscription = feed.subscribe(after, follower.send, on_rewind, rewinds)
        except LogIncomplete:
            logger.info("The log began after a base while its state was loaded: loading it again")
        else:
            return state, follower


def fold(state: ClusterState, committed: Sequence[Committed]) -> None:
    """Move ``state`` on by decisions; events that it has already are passed over."""
    for decision in committed:
        for recorded in decision.events:
            if recorded.seq > state.seq:
                apply(state, recorded.seq, recorded.epoch, recorded.at, recorded.event)
