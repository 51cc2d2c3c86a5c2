"""`CommitFeed`: every decision, once and in order, to every subscriber in the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from events.drivers import STDLIB, Driver
from events.errors import LogDamaged
from events.reader import LogReader
from events.record import Committed

Deliver = Callable[[Sequence[Committed]], None]

_BATCH = 200
"""Decisions in one delivery while a subscriber catches up."""

_logger = logging.getLogger(__name__)


class Subscription:
    """One subscriber's place in the feed, made by `CommitFeed.subscribe`."""

    def __init__(self, after: int, deliver: Deliver) -> None:
        self._deliver = deliver
        self.position = after
        """The last decision_id that was delivered."""
        self.closed = False
        """True once it gets no more."""
        self.error: Exception | None = None
        """What ``deliver`` raised, where that closed the subscription."""

    def close(self) -> None:
        """Get no more, from the next delivery on."""
        self.closed = True

    def push(self, decisions: Sequence[Committed]) -> None:
        """Deliver those that are new. For the feed only, which keeps the order.

        Raises `LogDamaged` for a gap, and whatever ``deliver`` raises.
        """
        new = [decision for decision in decisions if decision.decision_id > self.position]
        if self.closed or not new:
            return
        if new[0].decision_id != self.position + 1:
            raise LogDamaged(f"The feed jumps from decision {self.position} to {new[0].decision_id}.")
        self._deliver(new)
        self.position = new[-1].decision_id


class CommitFeed:
    """Hands on what the journal commits. A subscriber first gets the past from the file, then the present.

    The two join without gap or repetition, because a subscriber's last step of catching up and every
    publication exclude each other, and what is published is in the file already.
    """

    def __init__(self, path: Path, *, driver: Driver = STDLIB) -> None:
        self._path = path
        self._driver = driver
        self._lock = threading.RLock()
        self._subscriptions: list[Subscription] = []

    def publish(self, committed: Sequence[Committed]) -> list[Subscription]:
        """Deliver to all subscribers what has just been committed. Called by the journal, in order.

        A subscriber whose ``deliver`` raises is closed and keeps the error, the others go on. Returns those.
        Answers to repeated commands, which were published before, are passed over.
        """
        with self._lock:
            failed = [each for each in self._subscriptions if _failed(each, committed)]
            self._subscriptions = [each for each in self._subscriptions if not each.closed]
        return failed

    def subscribe(self, after: int, deliver: Deliver) -> Subscription:
        """Call ``deliver`` with every decision after the one with id ``after``, in batches, for ever.

        Calls it in this thread for what is in the file, and later in the publisher's; it must not block.
        Raises what ``deliver`` raises while catching up, and what `LogReader.open` raises.
        """
        subscription = Subscription(after, deliver)
        with LogReader.open(self._path, driver=self._driver) as reader:
            _catch_up(subscription, reader)
            with self._lock:
                _catch_up(subscription, reader)
                self._subscriptions.append(subscription)
        return subscription


def _catch_up(subscription: Subscription, reader: LogReader) -> None:
    decisions = reader.decisions(after=subscription.position)
    while batch := list(islice(decisions, _BATCH)):
        subscription.push(batch)


def _failed(subscription: Subscription, committed: Sequence[Committed]) -> bool:
    try:
        subscription.push(committed)
    except Exception as error:
        _logger.exception("A subscriber at decision %d is closed: its delivery failed", subscription.position)
        subscription.error = error
        subscription.close()
        return True
    return False
