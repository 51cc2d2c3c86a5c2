"""Every subscriber gets every decision once, in order, whenever it comes and whatever the others do."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from log_samples import finish, history, refuse

from events.errors import LogDamaged, LogIncomplete, LogMissing, LogRewound
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
    for batch in (
        [finish(1), finish(2)],
        [finish(2), refuse(3), finish(1)],
        [finish(3), refuse(4), finish(3)],
    ):
        feed.publish(log.append(batch))
    assert [each.decision_id for each in got] == [1, 2, 3, 4, 5]


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


class Follower:
    """Keeps what it is given, and goes back when told so."""

    def __init__(self) -> None:
        self.got: list[Committed] = []
        self.forks: list[int] = []

    def deliver(self, decisions: Sequence[Committed]) -> None:
        expected = self.got[-1].decision_id + 1 if self.got else 1
        assert [each.decision_id for each in decisions] == list(range(expected, expected + len(decisions)))
        self.got.extend(decisions)

    def on_rewind(self, fork: int) -> None:
        self.forks.append(fork)
        del self.got[fork:]


def rewind(log: EventLog, fork: int, then: Sequence[int] = ()) -> list[Committed]:
    """Rewind a log and append the decisions ``finish(n)`` that another log came to from the same fork."""
    with LogReader.open(log.path) as reader:
        shared = reader.entries(0, fork, 10**9)
    other = EventLog.open(log.path.with_name(f"other-{fork}-{log.last_decision}.db"))
    other.append_entries(shared)
    other.append([finish(n) for n in then])
    with LogReader.open(other.path) as reader:
        entries = reader.entries(fork, 10**9, 10**9)
    other.close()
    return log.rewind(fork, "w", "r", entries, at=1.0).appended


def everything(log: EventLog) -> list[Committed]:
    with LogReader.open(log.path) as reader:
        return list(reader.decisions())


def test_a_rewind_comes_in_order_with_deliveries(log: EventLog, feed: CommitFeed):
    follower, behind = Follower(), Follower()
    subscription = feed.subscribe(0, follower.deliver, follower.on_rewind)
    feed.publish(log.append(history()))
    feed.subscribe(0, behind.deliver, behind.on_rewind).close()
    assert feed.rewound(5, rewind(log, 5, [20, 21])) == []
    assert (follower.forks, subscription.position) == ([5], 7)
    assert follower.got == everything(log)
    feed.publish(log.append([finish(30)]))
    assert follower.got == everything(log)
    assert (len(behind.got), behind.forks) == (8, [])


def test_a_rewind_to_the_end_is_an_append(log: EventLog, feed: CommitFeed):
    got: list[Committed] = []
    feed.subscribe(0, got.extend)
    feed.publish(log.append(history()))
    assert feed.rewound(8, rewind(log, 8, [20])) == []
    assert got == everything(log)


def test_a_subscriber_that_can_not_go_back_is_closed(log: EventLog, feed: CommitFeed):
    log.append(history())
    subscription = feed.subscribe(0, lambda _: None)
    assert feed.rewound(5, rewind(log, 5, [20])) == [subscription]
    assert isinstance(subscription.error, LogRewound)
    assert "subscriber at 8 can't follow" in str(subscription.error)
    assert feed.publish(log.append([finish(21)])) == []


def test_a_rewind_before_the_subscription_is_not_missed(log: EventLog, feed: CommitFeed):
    log.append(history())
    with LogReader.open(log.path) as reader:
        rewinds, past = reader.rewinds(), list(reader.decisions())
    rewind(log, 5, [20, 21, 22, 23])
    follower = Follower()
    follower.got = past
    feed.subscribe(8, follower.deliver, follower.on_rewind, rewinds)
    assert follower.forks == [5]
    assert follower.got == everything(log)
    with pytest.raises(LogRewound):
        feed.subscribe(8, lambda _: None, rewinds=rewinds)


def test_a_rewind_between_commit_and_announcement_is_told_at_once_and_again(log: EventLog, feed: CommitFeed):
    """The subscriber comes when the file has the new history and the feed has not heard of it."""
    log.append([finish(n) for n in range(500)])
    follower = Follower()
    appended: list[Committed] = []

    def deliver(decisions: Sequence[Committed]) -> None:
        follower.deliver(decisions)
        if not appended:
            appended.extend(rewind(log, 150, range(1000, 1600)))

    feed.subscribe(0, deliver, follower.on_rewind)
    assert follower.got == everything(log)
    feed.rewound(150, appended)
    assert follower.forks == [150, 150]
    assert follower.got == everything(log)


def test_subscribers_that_come_while_the_log_is_rewound_miss_nothing(log: EventLog, feed: CommitFeed):
    dice, followers = random.Random(5), [Follower() for _ in range(12)]
    log.append([finish(n) for n in range(300)])

    def join() -> None:
        for follower in followers:
            feed.subscribe(0, follower.deliver, follower.on_rewind)

    joining = threading.Thread(target=join)
    joining.start()
    for n in range(40):
        if n % 4 == 3:
            fork = dice.randrange(100, log.last_decision)
            appended = rewind(log, fork, range(10**6 * n, 10**6 * n + dice.randrange(150)))
            feed.rewound(fork, appended)
        else:
            feed.publish(log.append([finish(10**8 + 1000 * n + i) for i in range(dice.randrange(1, 60))]))
    joining.join()
    feed.publish(log.append([finish(10**9)]))
    for follower in followers:
        assert follower.got == everything(log)


def test_a_log_that_begins_after_a_base_takes_its_subscribers_there(tmp_path: Path):
    other = EventLog.open(tmp_path / "other.db")
    other.append(history())
    other.append([finish(1), finish(2)])
    with LogReader.open(other.path) as reader:
        base, entries = reader.base_at(reader.last_decision() - 2), reader.entries(0, 100, 10**6)
    other.close()
    log = EventLog.open(tmp_path / "log.db")
    feed = CommitFeed(log.path)
    told: list[int] = []
    follows = feed.subscribe(0, lambda batch: told.extend(one.decision_id for one in batch), told.append)
    stays = feed.subscribe(0, lambda _: None)
    log.begin_after(base)
    with pytest.raises(LogIncomplete):
        feed.subscribe(0, lambda _: None)
    assert feed.began(base.decision_id) == [stays]
    assert isinstance(stays.error, LogRewound)
    feed.publish(log.append_entries(entries[-2:]))
    last = base.decision_id + 2
    assert (told, follows.position) == ([base.decision_id, last - 1, last], last)
    log.close()
