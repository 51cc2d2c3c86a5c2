"""A log that begins after a base and gets its past later, whatever SQLite library it is kept with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from log_samples import T0, draft, finish, history, query, refuse, start
from replication_conformance import ALL, Pair, entries, forged, rows

from events.check import check
from events.drivers import Driver
from events.ends import Base
from events.errors import EntriesRefused, LogDamaged, LogIncomplete
from events.feed import CommitFeed
from events.log import EventLog
from events.reader import LogReader
from events.record import Committed, Draft

AT = 21
"""The base: decision 21 of 40 has no events, and the run that it is in goes on."""


def long_history() -> list[Draft]:
    """40 decisions in 3 epochs."""
    drafts = [start(1, "s1"), *(finish(n) for n in range(2, 16)), start(2, "s2")]
    drafts += [*(finish(n) for n in range(17, 21)), refuse(21), *(finish(n) for n in range(22, 31))]
    drafts += [start(3, "s3"), *(refuse(n) for n in range(32, 41))]
    epoch = 1
    for n, each in enumerate(drafts):
        epoch = max(epoch, each.epoch)
        if each.epoch < epoch:
            drafts[n] = draft(each.command, *each.events, epoch=epoch, rejection=each.rejection)
    return drafts


class BaseConformance(Pair):
    @pytest.fixture
    def joined(self, master: EventLog, tmp_path: Path, driver: Driver) -> Iterator[EventLog]:
        """A log that begins after decision `AT` of the master's."""
        master.append(long_history())
        log = EventLog.open(tmp_path / "joined.db", driver=driver)
        log.begin_after(base_of(master, driver))
        yield log
        log.close()

    def test_it_is_what_the_other_was_there(self, master: EventLog, joined: EventLog, driver: Driver):
        with LogReader.open(joined.path, driver=driver) as reader:
            assert (reader.last_decision(), reader.head()) == (joined.last_decision, joined.head) == (AT, 38)
            assert reader.last() == ((2, "node-1", "inc-1"), AT)
            assert [run[3:] for run in reader.runs()] == [(1, 15), (16, AT)]
            assert reader.base() == reader.base_at(AT) == base_of(master, driver)
            assert (reader.decision_id_at(38), reader.decision_id_at(37)) == (AT, 0)
            assert reader.hash_at(38) == base_of(master, driver).event_hash != ""
            assert (reader.hash_at(37), reader.decision(AT + 1)) == ("", None)
            with pytest.raises(LogIncomplete):
                reader.decision(AT)
        assert check(joined.path, driver=driver).ok

    def test_it_goes_on_from_there(self, master: EventLog, joined: EventLog, driver: Driver):
        committed = joined.append_entries(entries(master, driver, after=AT))
        assert [each.decision_id for each in committed] == list(range(AT + 1, 41))
        with (
            LogReader.open(joined.path, driver=driver) as mine,
            LogReader.open(master.path, driver=driver) as other,
        ):
            assert (mine.runs(), mine.last()) == (other.runs(), other.last())
            assert list(mine.decisions(after=AT)) == list(other.decisions(after=AT))
            assert list(mine.stream(after=38)) == list(other.stream(after=38))
            assert mine.entries(AT, ALL, ALL) == other.entries(AT, ALL, ALL)
            assert mine.entries_upto(40, ALL, ALL) == other.entries(AT, ALL, ALL)
        found = check(joined.path, driver=driver)
        assert (found.ok, found.base, found.decisions) == (True, AT, 40 - AT)
        copy = joined.path.with_name("copy.db")
        joined.backup(copy)
        reopened = EventLog.open(copy, driver=driver)
        assert (reopened.last_decision, reopened.append([refuse(9)])[0].decision_id) == (40, 41)
        reopened.close()

    @pytest.mark.parametrize("batch", [1, 2, 7, 100])
    def test_the_past_comes_from_the_end_while_the_log_goes_on(
        self, master: EventLog, joined: EventLog, driver: Driver, batch: int
    ):
        with (
            LogReader.open(joined.path, driver=driver) as mine,
            LogReader.open(master.path, driver=driver) as other,
        ):
            base, due = joined_base(joined, driver), AT
            while base is not None:
                if joined.last_decision < 40:
                    joined.append_entries(other.entries(joined.last_decision, 2, ALL))
                base = joined.backfill(other.entries_upto(due, batch, ALL))
                due = max(0, due - batch)
                assert base == mine.base() == (other.base_at(due) if due else None)
                assert [run[:4] for run in mine.runs()] == [
                    run[:4] for run in other.runs() if run.first <= mine.last_decision()
                ]
                assert check(joined.path, driver=driver).ok
            joined.append_entries(other.entries(joined.last_decision, ALL, ALL))
        assert rows(joined) == rows(master)
        assert query(joined._connection, "SELECT * FROM meta ORDER BY 1") == query(
            master._connection, "SELECT * FROM meta ORDER BY 1"
        )
        assert joined.backfill(entries(master, driver)) is None

    def test_another_past_is_refused(self, master: EventLog, joined: EventLog, driver: Driver):
        with LogReader.open(master.path, driver=driver) as other:
            sent = other.entries(0, AT, ALL)
        for given in (sent[:-1], [*sent[:-3], *sent[-2:]], [forged(joined, "c")], sent[::-1], [b"junk"]):
            with pytest.raises(EntriesRefused):
                joined.backfill(given)
        assert joined_base(joined, driver) == base_of(master, driver)
        assert joined.backfill([]) == base_of(master, driver)
        assert joined.backfill(sent) is None

    def test_what_came_before_is_not_taken_for_nothing(
        self, master: EventLog, joined: EventLog, driver: Driver
    ):
        joined.append_entries(entries(master, driver, after=AT))
        got: list[Committed] = []
        feed = CommitFeed(joined.path, driver=driver)
        with LogReader.open(joined.path, driver=driver) as reader:
            for read in (reader.stream, reader.events, reader.decisions, lambda: reader.entries(0, 1, 1)):
                with pytest.raises(LogIncomplete, match=r"begins after decision 21 \(event 38\)"):
                    list(read())
            assert reader.entries_upto(AT, 5, ALL) == reader.entries_upto(AT - 9, 5, ALL) == []
            for seq in (5, 38):
                with pytest.raises(LogIncomplete):
                    reader.decision_at(seq)
        with pytest.raises(LogIncomplete):
            feed.subscribe(AT - 1, got.extend)
        feed.subscribe(AT, got.extend)
        assert [each.decision_id for each in got] == list(range(AT + 1, 41))

    def test_it_can_be_rewound_to_its_base_and_no_further(
        self, master: EventLog, joined: EventLog, driver: Driver
    ):
        sent = entries(master, driver, after=AT)
        joined.append_entries(sent)
        with pytest.raises(LogIncomplete, match="can't be rewound to decision 20: it begins after 21"):
            joined.rewind(AT - 1, "w", "r", [], at=T0)
        assert len(joined.rewind(AT, "w", "r", sent[:1], at=T0).rejected) == 19
        assert (joined.last_decision, check(joined.path, driver=driver).ok) == (AT + 1, True)

    def test_only_an_empty_log_can_begin_after_a_base(self, master: EventLog, tmp_path: Path, driver: Driver):
        base = base_of(master, driver, master.append(history())[2].decision_id)
        path = tmp_path / "joined.db"
        log = EventLog.open(path, driver=driver)
        log.begin_after(base)
        for _ in range(2):
            with pytest.raises(EntriesRefused, match="has begun already"):
                log.begin_after(base)
            log.close()
            log = EventLog.open(path, driver=driver)
            assert log.last_decision == 3
        log.close()

    def test_a_base_is_of_a_decision_that_is_there(self, master: EventLog, driver: Driver):
        master.append(history())
        with pytest.raises(LogDamaged, match="no decision 9"):
            base_of(master, driver, 9)

    def test_a_base_at_nothing_is_none(self, master: EventLog, tmp_path: Path, driver: Driver):
        log = EventLog.open(tmp_path / "joined.db", driver=driver)
        log.begin_after(base_of(master, driver, 0))
        assert joined_base(log, driver) is None
        log.close()


def base_of(log: EventLog, driver: Driver, decision_id: int = AT) -> Base:
    with LogReader.open(log.path, driver=driver) as reader:
        return reader.base_at(decision_id)


def joined_base(log: EventLog, driver: Driver) -> Base | None:
    with LogReader.open(log.path, driver=driver) as reader:
        return reader.base()
