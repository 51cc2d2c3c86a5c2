"""`CommitFeed`: every decision, once and in order, to every subscriber in the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from events.drivers import STDLIB, Driver
from events.errors import LogDamaged, LogRewound
from events.reader import LogReader
from events.record import Committed

Deliver = Callable[[Sequence[Committed]], None]
OnRewind = Callable[[int], None]
"""Told a decision_id: what was delivered is void where it differs, and what comes next follows that one."""

_BATCH = 200
"""Decisions in one delivery while a subscriber catches up."""

_logger = logging.getLogger(__name__)


class Subscription:
    """One subscriber's place in the feed, made by `CommitFeed.subscribe`."""

    def __init__(self, after: int, deliver: Deliver, on_rewind: OnRewind | None = None) -> None:
        self._deliver = deliver
        self._on_rewind = on_rewind
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
        new: list[Committed] = []
        position = self.position
        for decision in decisions:  # a command that came twice in a batch has its answer there twice
            if decision.decision_id > position:
                new.append(decision)
                position = decision.decision_id
        if self.closed or not new:
            return
        if new[0].decision_id != self.position + 1:
            raise LogDamaged(f"The feed jumps from decision {self.position} to {new[0].decision_id}.")
        self._deliver(new)
        self.position = position

    def go_back(self, fork: int) -> None:
        """Void what was delivered after ``fork``. For the feed only, which keeps the order.

        Raises `LogRewound` where the subscriber can't go back, and whatever ``on_rewind`` raises.
        """
        if self.closed or self.position <= fork:
            return
        self.go_to(fork)

    def go_to(self, decision_id: int) -> None:
        """Go on after a decision without having had what came before. For the feed only.

        Raises `LogRewound` where the subscriber can't, and whatever ``on_rewind`` raises.
        """
        if self.closed:
            return
        if self._on_rewind is None:
            raise LogRewound(
                f"The log now goes on after decision {decision_id}: a subscriber at {self.position} can't "
                "follow it."
            )
        self._on_rewind(decision_id)
        self.position = decision_id


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
        return self._for_each(lambda each: each.push(committed))

    def rewound(self, fork: int, appended: Sequence[Committed]) -> list[Subscription]:
        """Tell all subscribers that the log was rewound to ``fork``, and deliver what was appended instead.

        Called by the journal, in order with what it publishes. A subscriber beyond ``fork`` that gave no
        ``on_rewind`` is closed, as one whose delivery fails. Returns those.
        """

        def follow(each: Subscription) -> None:
            each.go_back(fork)
            each.push(appended)

        return self._for_each(follow)

    def began(self, base: int) -> list[Subscription]:
        """Tell all subscribers that the log, empty until now, begins after decision ``base`` of another.

        They get ``on_rewind``: the state there is to be loaded. Called by the journal, in order with what it
        publishes. A subscriber that gave no ``on_rewind`` is closed. Returns those.
        """
        return self._for_each(lambda each: each.go_to(base))

    def subscribe(
        self, after: int, deliver: Deliver, on_rewind: OnRewind | None = None, rewinds: int | None = None
    ) -> Subscription:
        """Call ``deliver`` with every decision after the one with id ``after``, in batches, for ever.

        Calls it in this thread for what is in the file, and later in the publisher's; it must not block.
        ``on_rewind`` is called between deliveries, in order with them, where the log goes back, and may come
        twice for one rewind. ``rewinds`` is `LogReader.rewinds` before ``after`` was chosen: a rewind since
        then is not missed. Raises what these raise while catching up, `LogIncomplete`, and what
        `LogReader.open` raises.
        """
        subscription = Subscription(after, deliver, on_rewind)
        with LogReader.open(self._path, driver=self._driver) as reader:
            seen = _catch_up(subscription, reader, reader.rewinds() if rewinds is None else rewinds)
            with self._lock:
                _catch_up(subscription, reader, seen)
                self._subscriptions.append(subscription)
        return subscription

    def _for_each(self, serve: Callable[[Subscription], None]) -> list[Subscription]:
        with self._lock:
            failed = [each for each in self._subscriptions if _failed(each, serve)]
            self._subscriptions = [each for each in self._subscriptions if not each.closed]
        return failed


def _catch_up(subscription: Subscription, reader: LogReader, rewinds: int) -> int:
    """Deliver what is in the file. ``rewinds`` is the number that the subscriber knows of; returns the last.

    What was read is delivered only if no rewind came meanwhile, so that it follows what was delivered before.
    """
    while True:
        batch: list[Committed] = []
        with suppress(LogRewound):
            batch = list(reader.decisions(after=subscription.position, limit=_BATCH))
        seen, fork = reader.rewinds(), reader.fork_since(rewinds)
        if fork is not None:
            subscription.go_back(fork)
        elif batch:
            subscription.push(batch)
        else:
            return seen
        rewinds = seen


def _failed(subscription: Subscription, serve: Callable[[Subscription], None]) -> bool:
    try:
        serve(subscription)
    except Exception as error:
        _logger.exception("A subscriber at decision %d is closed: its delivery failed", subscription.position)
        subscription.error = error
        subscription.close()
        return True
    return False
