"""Every subscriber gets every decision once, in order, whenever it comes and whatever the others do."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from log_samples import finish, history, refuse

from events.errors import LogDamaged, LogMissing
from events.feed import CommitFeed
from events.log import EventLog
from events.reader import LogReader
from events.record import Committed


@pytest.fixture
def log(tmp_path: Path):
    log = EventLog.open(tmp_path / "log.db")
    yield log
    log.close()


@pytest.fixture
def feed(log: EventLog) -> CommitFeed:
    return CommitFeed(log.path)


def test_committed_but_not_yet_published_comes_once(log: EventLog, feed: CommitFeed):
    committed = log.append(history())
    got: list[Committed] = []
    feed.subscribe(0, got.extend)
    feed.publish(committed)
    assert got == committed


def test_answers_to_repeated_commands_are_passed_over(log: EventLog, feed: CommitFeed):
    got: list[Committed] = []
    feed.subscribe(0, got.extend)
    for batch in ([finish(1), finish(2)], [finish(2), refuse(3), finish(1)], [finish(3)]):
        feed.publish(log.append(batch))
    assert [each.decision_id for each in got] == [1, 2, 3, 4]


def test_a_closed_subscription_gets_no_more(log: EventLog, feed: CommitFeed):
    got: list[Committed] = []
    subscription = feed.subscribe(0, got.extend)
    feed.publish(log.append([finish(1)]))
    subscription.close()
    feed.publish(log.append([finish(2)]))
    assert [each.decision_id for each in got] == [1]
    assert subscription.closed
    assert subscription.error is None


def test_a_subscriber_may_close_itself_while_it_is_served(log: EventLog, feed: CommitFeed):
    got: list[Committed] = []

    def once(decisions: Sequence[Committed]) -> None:
        got.extend(decisions)
        subscription.close()

    subscription = feed.subscribe(0, once)
    feed.publish(log.append([finish(1)]))
    feed.publish(log.append([finish(2)]))
    assert [each.decision_id for each in got] == [1]


def test_a_failing_subscriber_is_closed_and_named_and_the_others_go_on(log: EventLog, feed: CommitFeed):
    got: list[Committed] = []

    def fail(_: Sequence[Committed]) -> None:
        raise RuntimeError("full")

    failing = feed.subscribe(0, fail)
    feed.subscribe(0, got.extend)
    assert feed.publish(log.append([finish(1)])) == [failing]
    assert str(failing.error) == "full"
    assert failing.closed
    assert failing.position == 0
    assert feed.publish(log.append([finish(2)])) == []
    assert [each.decision_id for each in got] == [1, 2]
    resumed: list[Committed] = []
    feed.subscribe(failing.position, resumed.extend)
    assert resumed == got


def test_a_failure_while_catching_up_is_the_subscribers_own(log: EventLog, feed: CommitFeed):
    log.append([finish(1)])

    def fail(_: Sequence[Committed]) -> None:
        raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        feed.subscribe(0, fail)
    assert feed.publish(log.append([finish(2)])) == []


def test_a_gap_is_an_error_not_a_silence(log: EventLog, feed: CommitFeed):
    got: list[Committed] = []
    subscription = feed.subscribe(0, got.extend)
    log.append([finish(1)])
    assert feed.publish(log.append([finish(2)])) == [subscription]
    assert isinstance(subscription.error, LogDamaged)
    assert str(subscription.error) == "The feed jumps from decision 0 to 2."
    assert got == []


def test_there_must_be_a_log(tmp_path: Path):
    with pytest.raises(LogMissing):
        CommitFeed(tmp_path / "log.db").subscribe(0, print)


def test_subscribers_that_come_while_the_journal_writes_miss_nothing(log: EventLog, feed: CommitFeed):
    log.append([finish(n) for n in range(450)])
    stop = threading.Event()

    def journal() -> None:
        dice, n = random.Random(1), 1000
        while not stop.is_set():
            batch = [finish(n + i) for i in range(dice.randint(1, 9))]
            n += len(batch)
            feed.publish(log.append(batch))

    logs: list[list[int]] = []
    afters: list[int] = []

    def subscribe(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(25):
            got: list[int] = []
            after = dice.choice([0, 100, 450])
            feed.subscribe(after, lambda batch, got=got: got.extend(each.decision_id for each in batch))
            afters.append(after)
            logs.append(got)

    writer = threading.Thread(target=journal)
    subscribers = [threading.Thread(target=subscribe, args=(seed,)) for seed in range(4)]
    writer.start()
    for thread in subscribers:
        thread.start()
    for thread in subscribers:
        thread.join()
    stop.set()
    writer.join()
    with LogReader.open(log.path) as reader:
        last = reader.last_decision()
    assert len(logs) == 100
    assert last > 450
    ends = {(got[0] - 1, got[-1]) for got in logs}
    assert ends <= {(0, last), (100, last), (450, last)}
    assert all(got == list(range(got[0], last + 1)) for got in logs)
