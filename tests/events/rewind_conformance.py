"""What a rewind promises, whatever SQLite library the log is kept with."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_samples import T0, draft, finish, history, query, refuse, start
from replication_conformance import Pair, entries, forged, rows

from events.branches import Branch
from events.chain import DECISION_COLUMNS, EVENT_COLUMNS
from events.check import check
from events.drivers import Driver
from events.errors import EntriesRefused, LogRewound
from events.log import EventLog
from events.reader import LogReader

AT = T0 + 1000
WHY = "node-2 had more followers"


def forked(master: EventLog, follower: EventLog, driver: Driver) -> None:
    """Both have the history of 8 decisions; the master has 2 more, the follower 3."""
    master.append(history())
    follower.append_entries(entries(master, driver))
    master.append([start(2, "m"), draft(finish(20).command, *finish(20).events, epoch=2)])
    follower.append([finish(30), refuse(31), start(3, "f")])


def branch_rows(log: EventLog, branch: int) -> tuple[list[tuple], list[tuple]]:
    decisions = f"SELECT {DECISION_COLUMNS}, hash FROM rejected_decisions WHERE branch = {branch} ORDER BY 1"
    events = f"SELECT {EVENT_COLUMNS}, hash FROM rejected_events WHERE branch = {branch} ORDER BY 1"
    return query(log._connection, decisions), query(log._connection, events)


def rows_after(log: EventLog, decision_id: int, seq: int) -> tuple[list[tuple], list[tuple]]:
    decisions = f"SELECT {DECISION_COLUMNS}, hash FROM decisions WHERE decision_id > {decision_id}"
    events = f"SELECT {EVENT_COLUMNS}, hash FROM events WHERE seq > {seq}"
    return query(log._connection, decisions), query(log._connection, events)


class RewindConformance(Pair):
    def test_the_loser_s_suffix_is_in_its_branch_and_the_winner_s_in_the_log(
        self, master: EventLog, follower: EventLog, driver: Driver
    ):
        forked(master, follower, driver)
        lost = rows_after(follower, 8, 9)
        with (
            LogReader.open(follower.path, driver=driver) as reader,
            LogReader.open(master.path, driver=driver) as winner,
        ):
            expected = list(reader.decisions(after=8)), list(winner.decisions(after=8))
            assert follower.rewind(8, "2.node-1", WHY, entries(master, driver, after=8), at=AT) == expected
            assert reader.branches() == [
                Branch(
                    branch=1, fork=8, fork_seq=9, winner="2.node-1", reason=WHY, at=AT, decisions=3, events=3
                )
            ]
        assert branch_rows(follower, 1) == lost
        assert rows(follower) == rows(master)
        assert query(follower._connection, "PRAGMA synchronous") == [(2,)]
        found = check(follower.path, full=True, driver=driver)
        assert (found.ok, [each.branch for each in found.branches]) == (True, [1])

    def test_the_log_goes_on(self, master: EventLog, follower: EventLog, driver: Driver):
        forked(master, follower, driver)
        follower.rewind(8, "w", WHY, entries(master, driver, after=8), at=AT)
        (again,) = follower.append([draft(finish(30).command, *finish(30).events, epoch=2)])
        assert again.decision_id == 11
        master.append_entries(entries(follower, driver, after=10))
        assert rows(master) == rows(follower)
        follower.rewind(9, "w", "once more", [], at=AT)
        assert (follower.last_decision, follower.head) == (9, 10)
        assert [len(found) for found in branch_rows(follower, 2)] == [2, 4]
        assert check(follower.path, driver=driver).ok

    def test_a_log_can_be_rewound_to_nothing(self, master: EventLog, follower: EventLog, driver: Driver):
        master.append([start(), finish(1)])
        follower.append([finish(2), start(1, "other")])
        assert len(follower.rewind(0, "w", WHY, entries(master, driver), at=AT).rejected) == 2
        assert rows(follower) == rows(master)
        assert check(follower.path, driver=driver).ok

    def test_nothing_to_reject_makes_no_branch(self, master: EventLog, follower: EventLog, driver: Driver):
        master.append(history())
        follower.append_entries(entries(master, driver))
        assert follower.rewind(8, "w", WHY, [], at=AT) == ([], [])
        master.append([finish(9)])
        assert len(follower.rewind(8, "w", WHY, entries(master, driver, after=8), at=AT).appended) == 1
        with LogReader.open(follower.path, driver=driver) as reader:
            assert (reader.branches(), reader.rewinds()) == ([], 0)

    def test_what_does_not_follow_the_fork_changes_nothing(
        self, master: EventLog, follower: EventLog, driver: Driver
    ):
        forked(master, follower, driver)
        before = rows(follower)
        with pytest.raises(EntriesRefused, match="Decision 10 came where decision 9 is due"):
            follower.rewind(8, "w", WHY, entries(master, driver, after=9), at=AT)
        with pytest.raises(EntriesRefused, match="Decision 9 follows another history"):
            follower.rewind(8, "w", WHY, [forged(follower, "c", decision_id=9, first_seq=10)], at=AT)
        with pytest.raises(EntriesRefused, match="can't be rewound to decision 12: it ends at 11"):
            follower.rewind(12, "w", WHY, [], at=AT)
        assert rows(follower) == before
        assert not follower.failed
        with LogReader.open(follower.path, driver=driver) as reader:
            assert reader.rewinds() == 0

    @pytest.mark.parametrize("table", ["branches", "rejected_decisions", "rejected_events"])
    @pytest.mark.parametrize("verb", ["UPDATE {} SET branch = 9", "DELETE FROM {}"])
    def test_branches_stay_as_they_are(
        self, master: EventLog, follower: EventLog, driver: Driver, table: str, verb: str
    ):
        forked(master, follower, driver)
        follower.rewind(8, "w", WHY, [], at=AT)
        with pytest.raises(driver.error, match=f"what was rejected is kept: rows of {table} stay"):
            query(follower._connection, verb.format(table))

    @pytest.mark.parametrize("table", ["decisions", "events"])
    @pytest.mark.parametrize("verb", ["UPDATE {} SET epoch = 9", "DELETE FROM {}"])
    def test_a_rewound_log_is_as_append_only_as_before(
        self, master: EventLog, follower: EventLog, driver: Driver, table: str, verb: str
    ):
        forked(master, follower, driver)
        follower.rewind(8, "w", WHY, entries(master, driver, after=8), at=AT)
        with pytest.raises(driver.error, match=f"the log is append-only: rows of {table} stay"):
            query(follower._connection, verb.format(table))

    def test_a_rejected_history_that_wins_after_all_can_not_be_deleted(
        self, master: EventLog, follower: EventLog, driver: Driver
    ):
        forked(master, follower, driver)
        own = entries(follower, driver, after=8)
        follower.rewind(8, "w", WHY, entries(master, driver, after=8), at=AT)
        follower.rewind(8, "w", WHY, own, at=AT)
        with pytest.raises(driver.error, match="rows of events stay as they are"):
            query(follower._connection, "DELETE FROM events WHERE seq > 9")
        assert branch_rows(follower, 1) == rows_after(follower, 8, 9)
        assert check(follower.path, driver=driver).ok

    def test_a_reader_never_mixes_two_histories(self, master: EventLog, follower: EventLog, driver: Driver):
        master.append([start(), *(finish(n) for n in range(1300))])
        follower.append_entries(entries(master, driver))
        with LogReader.open(follower.path, driver=driver) as reader:
            reading = [reader.stream(), reader.events(), reader.decisions()]
            for each in reading:
                next(each)
            follower.rewind(400, "w", WHY, entries(master, driver, after=400)[:10], at=AT)
            for each in reading:
                with pytest.raises(LogRewound, match="rewound while it was being read"):
                    list(each)
            assert len(list(reader.decisions())) == 410
            assert (reader.fork_since(0), reader.fork_since(1)) == (400, None)

    def test_damage_in_a_branch_is_found(self, master: EventLog, follower: EventLog, driver: Driver):
        forked(master, follower, driver)
        follower.rewind(8, "w", WHY, [], at=AT)
        for sql, problem in (
            ("UPDATE rejected_events SET body = '{}' WHERE seq = 11", ("rejected_events", 11)),
            ("UPDATE rejected_decisions SET origin = 'x' WHERE decision_id = 10", ("rejected_decisions", 10)),
            ("DELETE FROM rejected_decisions WHERE decision_id = 9", ("rejected_decisions", 9)),
            ("DELETE FROM rejected_decisions", ("rejected_decisions", 9)),
        ):
            copy = follower.path.with_name(f"{problem[0]}-{len(sql)}.db")
            follower.backup(copy)
            _damage(copy, sql, driver)
            found = check(copy, driver=driver)
            assert found.break_ is not None
            assert (found.break_.table, found.break_.position) == problem

    def test_the_view_reads_like_a_report(self, master: EventLog, follower: EventLog, driver: Driver):
        forked(master, follower, driver)
        follower.rewind(8, "2.node-1", WHY, [], at=AT)
        assert query(
            follower._connection,
            "SELECT branch, reason, winner, fork, decisions, events, last_decided, commands "
            "FROM rejected_branches",
        ) == [
            (1, WHY, "2.node-1", 8, 3, 3, "2023-11-14T22:13:51.250Z", "CancelTasks,DeleteInstance,StartEpoch")
        ]


def _damage(path: Path, sql: str, driver: Driver) -> None:
    connection = driver.open(path, write=True)
    for (name,) in query(connection, "SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
        query(connection, f"DROP TRIGGER {name}")
    query(connection, sql)
    connection.close()
