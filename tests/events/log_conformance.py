"""What the log promises, whatever SQLite library it is kept with. Each driver's test class inherits it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from log_samples import (
    NODE,
    T0,
    draft,
    finish,
    history,
    query,
    reading,
    refuse,
    request,
    start,
)

from events.base import Event
from events.catalogue import InstanceDeleted, InstanceRequested
from events.chain import verify_chain
from events.check import check
from events.commands import DeleteInstance
from events.drivers import Connection, Driver
from events.errors import (
    DraftRefused,
    LogDamaged,
    LogFailed,
    LogForeign,
    LogLocked,
    LogMissing,
    LogTooNew,
)
from events.feed import CommitFeed
from events.log import AUTOCHECKPOINT_PAGES, EventLog
from events.reader import LogReader
from events.record import Committed, Draft


class LogConformance:
    @pytest.fixture
    def driver(self) -> Driver:
        raise NotImplementedError

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "log.db"

    @pytest.fixture
    def log(self, path: Path, driver: Driver):
        log = EventLog.open(path, driver=driver)
        yield log
        log.close()

    @pytest.fixture
    def reader(self, log: EventLog, driver: Driver):
        with LogReader.open(log.path, driver=driver) as reader:
            yield reader

    # Append

    def test_a_new_log_is_empty(self, log: EventLog, reader: LogReader):
        assert (log.head, log.last_decision) == (0, 0)
        assert (reader.head(), reader.last_decision()) == (0, 0)
        assert list(reader.stream()) == []
        assert list(reader.decisions()) == []
        assert log.append([]) == []

    def test_what_append_returns_is_what_is_read(self, log: EventLog, reader: LogReader):
        committed = log.append(history())
        assert list(reader.decisions()) == committed
        assert [record for each in committed for record in each.events] == list(reader.events())
        assert [each.decision_id for each in committed] == list(range(1, 9))
        assert [record.seq for record in reader.events()] == list(range(1, 10))
        assert (log.head, log.last_decision) == (9, 8) == (reader.head(), reader.last_decision())

    def test_decisions_carry_their_draft(self, log: EventLog):
        drafts = history()
        for given, got in zip(drafts, log.append(drafts), strict=True):
            assert (got.command, got.facts, got.rejection) == (given.command, given.facts, given.rejection)
            assert got.command_id == given.command.command_id
            assert (got.decider, got.decider_version) == ("cluster", 1)
            assert got.at == given.facts.now
            assert [record.event for record in got.events] == given.events

    def test_first_seq_without_events_is_the_next_seq(self, log: EventLog):
        refused, finished = log.append([refuse(1), finish(2)])
        assert refused.events == []
        assert refused.first_seq == finished.first_seq == finished.events[0].seq == 1

    def test_a_report_comes_from_its_origin_a_command_from_the_decider(self, log: EventLog):
        report, command = log.append([reading(1), request(2)])
        assert (report.origin, report.events[0].origin) == ("node-2", "node-2")
        assert (command.origin, command.events[0].origin) == (NODE, NODE)

    def test_a_new_epoch_starts_with_its_own_decision(self, log: EventLog):
        (committed,) = log.append([start(epoch=7)])
        assert committed.facts.epoch == 6
        assert committed.epoch == committed.events[0].epoch == 7

    def test_whole_seconds_are_chained_as_they_are_read(self, log: EventLog, path: Path, driver: Driver):
        log.append([draft(DeleteInstance(command_id="c", instance_id="i"), now=T0 // 1)])
        log.append([draft(DeleteInstance(command_id="d", instance_id="i"), now=int(T0))])
        assert verify_chain(path, driver) is None

    def test_numbers_go_on_after_reopening(self, path: Path, driver: Driver):
        for n in range(3):
            log = EventLog.open(path, driver=driver)
            (committed,) = log.append([finish(n)])
            assert (committed.decision_id, committed.first_seq) == (n + 1, 2 * n + 1)
            log.close()
        assert check(path, driver=driver).ok

    # Idempotency

    def test_a_repeated_command_gets_the_first_answer(self, log: EventLog, reader: LogReader):
        first = log.append(history())
        again = draft(
            DeleteInstance(command_id="cmd-place-1", instance_id="i"), InstanceDeleted(instance_id="i")
        )
        assert log.append([again]) == [first[1]]
        assert log.append([finish(2), request(9), refuse(3)])[::2] == [first[2], first[3]]
        assert reader.last_decision() == 9

    def test_a_command_twice_in_a_batch_is_one_decision(self, log: EventLog, reader: LogReader):
        one, two, three = log.append([finish(1), refuse(2), finish(1)])
        assert one is three
        assert list(reader.decisions()) == [one, two]

    def test_the_first_answer_survives_reopening(self, path: Path, driver: Driver):
        log = EventLog.open(path, driver=driver)
        first = log.append(history())
        log.close()
        log = EventLog.open(path, driver=driver)
        assert log.append(history()) == first
        log.close()

    # Refusal and failure

    def test_what_could_not_be_read_back_is_refused(self, log: EventLog, reader: LogReader):
        wrong = InstanceRequested(instance_id="i", model_id=7, settings=None)  # type: ignore[arg-type]
        bad = draft(DeleteInstance(command_id="bad", instance_id="i"), wrong)
        with pytest.raises(DraftRefused, match=r"DeleteInstance bad can't be recorded: .*InstanceRequested"):
            log.append([finish(1), bad])
        assert (log.head, reader.head()) == (0, 0)
        assert log.append([finish(1)])[0].decision_id == 1

    def test_a_lone_surrogate_is_refused(self, log: EventLog):
        with pytest.raises(DraftRefused, match="surrogate"):
            log.append([finish(1), draft(DeleteInstance(command_id="\ud800", instance_id="i"))])

    def test_a_rejection_with_events_is_refused(self, log: EventLog):
        bad = draft(
            DeleteInstance(command_id="c", instance_id="i"),
            InstanceDeleted(instance_id="i"),
            rejection=refuse(0).rejection,
        )
        with pytest.raises(DraftRefused, match="is rejected and has events"):
            log.append([bad])

    def test_an_unknown_class_of_event_is_refused(self, log: EventLog):
        class Stranger(Event, frozen=True):
            SUBJECT = "name"
            name: str

        with pytest.raises(DraftRefused, match="Stranger"):
            log.append([draft(DeleteInstance(command_id="c", instance_id="i"), Stranger(name="x"))])

    def test_after_a_failed_write_the_log_must_be_reopened(self, path: Path, driver: Driver):
        log = EventLog.open(path, driver=driver)
        log.append([finish(1)])
        pages = query(log._connection, "PRAGMA page_count")[0][0]
        query(log._connection, f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LogFailed, match="full"):
            log.append([finish(n) for n in range(2, 2000)])
        with pytest.raises(LogFailed, match="close the log and open it again"):
            log.append([finish(3)])
        log.close()
        log = EventLog.open(path, driver=driver)
        assert (log.head, log.last_decision) == (2, 1)
        assert log.append([finish(2)])[0].first_seq == 3
        log.close()
        assert check(path, driver=driver).ok

    @pytest.mark.parametrize("table", ["decisions", "events"])
    @pytest.mark.parametrize("verb", ["UPDATE {} SET epoch = 9", "DELETE FROM {}"])
    def test_rows_stay_as_they_are(self, log: EventLog, driver: Driver, table: str, verb: str):
        log.append(history())
        with pytest.raises(driver.error, match=f"the log is append-only: rows of {table} stay"):
            query(log._connection, verb.format(table))

    def test_a_reader_can_not_write(self, log: EventLog, reader: LogReader, driver: Driver):
        with pytest.raises(driver.error, match=r"readonly|read-only"):
            query(reader._connection, "INSERT INTO meta VALUES ('a', 'b')")

    # Durability

    @pytest.mark.parametrize(
        ("drafts", "synchronous"),
        [
            ([reading(1), reading(2)], 1),
            ([reading(1), finish(2), reading(3)], 2),
            ([refuse(1)], 2),
            ([draft(DeleteInstance(command_id="c", instance_id="i"))], 2),
        ],
        ids=["observations", "one decision among them", "a refusal", "no events"],
    )
    def test_a_commit_is_as_durable_as_its_strictest_member(
        self, log: EventLog, drafts: list[Draft], synchronous: int
    ):
        for others in ([reading(8)], [finish(9)]):
            log.append(others)
            log.append(drafts)
            drafts = [Draft(**{**_fields(each), "command": _renamed(each.command)}) for each in drafts]
            assert query(log._connection, "PRAGMA synchronous") == [(synchronous,)]

    def test_the_log_is_in_wal_mode(self, log: EventLog):
        assert query(log._connection, "PRAGMA journal_mode") == [("wal",)]
        assert query(log._connection, "PRAGMA wal_autocheckpoint") == [(AUTOCHECKPOINT_PAGES,)]

    # Opening

    def test_a_second_writer_is_refused_until_the_first_closes(self, path: Path, driver: Driver):
        log = EventLog.open(path, driver=driver)
        with pytest.raises(LogLocked, match=r"written by the process with pid \d+: stop it"):
            EventLog.open(path, driver=driver)
        log.append([finish(1)])
        log.close()
        EventLog.open(path, driver=driver).close()

    def test_another_database_is_refused(self, path: Path, driver: Driver):
        connection = driver.open(path, write=True)
        query(connection, "CREATE TABLE events (x)")
        connection.close()
        for opener in (EventLog.open, LogReader.open):
            with pytest.raises(LogForeign, match="is a SQLite database but not a Cuebook log"):
                opener(path, driver=driver)

    def test_what_is_no_database_is_refused(self, path: Path, driver: Driver):
        path.write_bytes(b"no database " * 400)
        for opener in (EventLog.open, LogReader.open):
            with pytest.raises(LogForeign, match="can't be read as a SQLite database"):
                opener(path, driver=driver)

    def test_a_reader_waits_for_who_is_opening_or_closing_it(self, path: Path, driver: Driver):
        EventLog.open(path, driver=driver).close()
        alone = driver.open(path, write=True)
        query(alone, "PRAGMA locking_mode = EXCLUSIVE")
        query(alone, "SELECT * FROM meta")
        closing = threading.Timer(0.2, alone.close)
        closing.start()
        with LogReader.open(path, driver=driver) as reader:
            assert reader.head() == 0
        closing.join()

    def test_a_newer_format_is_refused(self, path: Path, driver: Driver):
        EventLog.open(path, driver=driver).close()
        connection = driver.open(path, write=True)
        query(connection, "PRAGMA user_version = 3")
        connection.close()
        for opener in (EventLog.open, LogReader.open):
            with pytest.raises(LogTooNew, match="has log format 3 and this version of Cuebook reads up to 2"):
                opener(path, driver=driver)

    def test_no_log_to_read(self, path: Path, driver: Driver):
        with pytest.raises(LogMissing, match="There is no log at"):
            LogReader.open(path, driver=driver)
        path.touch()
        with pytest.raises(LogMissing, match="nothing has been written to this log yet"):
            LogReader.open(path, driver=driver)

    def test_a_path_with_odd_characters(self, tmp_path: Path, driver: Driver):
        path = tmp_path / "a b?mode=memory#100%" / "lög.db"
        path.parent.mkdir()
        log = EventLog.open(path, driver=driver)
        log.append(history())
        with LogReader.open(path, driver=driver) as reader:
            assert reader.head() == 9
        log.close()
        assert path.is_file()

    def test_an_end_that_contradicts_itself_is_refused(self, path: Path, driver: Driver):
        EventLog.open(path, driver=driver).close()
        connection = driver.open(path, write=True)
        query(
            connection,
            "INSERT INTO events (seq, type, subject, version, body, decision_id, epoch, origin, at, hash) "
            "VALUES (1, 't', 's', 1, '{}', 1, 1, 'o', 1.0, 'h')",
        )
        connection.close()
        with pytest.raises(LogDamaged, match="decision 0 ends at event 0 but the last event is 1"):
            EventLog.open(path, driver=driver)

    # Reading

    def test_stream_gives_the_events(self, log: EventLog, reader: LogReader):
        log.append(history())
        expected = [(each.seq, each.epoch, each.at, each.event) for each in reader.events()]
        assert list(reader.stream()) == expected
        assert list(reader.stream(after=3, upto=6)) == expected[3:6]
        assert list(reader.stream(after=9)) == []

    def test_a_stream_goes_past_its_batches(self, log: EventLog, reader: LogReader):
        log.append([finish(n) for n in range(1300)])
        assert [seq for seq, *_ in reader.stream(after=10)] == list(range(11, 2601))
        assert [each.seq for each in reader.events(limit=1203)] == list(range(1, 1204))
        assert [each.decision_id for each in reader.decisions(after=5)] == list(range(6, 1301))
        assert len(list(reader.decisions(limit=450))) == 450

    def test_events_are_filtered(self, log: EventLog, reader: LogReader):
        log.append(history())
        assert [each.seq for each in reader.events(types=["TaskFinished"])] == [4, 7, 9]
        assert [each.seq for each in reader.events(subject="task-5")] == [6, 7]
        assert [each.seq for each in reader.events(types={"TaskFinished"}, subject="task-5")] == [7]
        assert [each.seq for each in reader.events(after=4, upto=8, limit=2)] == [5, 6]
        assert list(reader.events(types=[])) == []
        assert list(reader.events(limit=0)) == []
        with pytest.raises(ValueError, match="No event is called TaskFinnished"):
            list(reader.events(types=["TaskFinnished"]))

    def test_single_decisions(self, log: EventLog, reader: LogReader):
        committed = log.append(history())
        for each in committed:
            assert reader.decision(each.decision_id) == each
            assert reader.decision_of(each.command_id) == each
            assert [reader.decision_at(record.seq) for record in each.events] == [each] * len(each.events)
        assert (reader.decision(0), reader.decision_of("nobody"), reader.decision_at(10)) == (
            None,
            None,
            None,
        )

    def test_the_last_seq_at_a_time(self, log: EventLog, reader: LogReader):
        log.append([finish(3), finish(1), finish(5)])
        times = [T0, T0 + 1, T0 + 3, T0 + 4.9, T0 + 5, T0 + 99]
        assert [reader.seq_at(time) for time in times] == [0, 4, 4, 4, 6, 6]

    def test_a_slow_reader_does_not_hold_the_wal(self, log: EventLog, reader: LogReader):
        log.append([finish(n) for n in range(1300)])
        half_read = reader.stream()
        next(half_read)
        assert log.checkpoint()
        assert log.wal_bytes == 0

    def test_a_forgotten_transaction_holds_the_wal_and_is_noticed(
        self, log: EventLog, path: Path, driver: Driver
    ):
        log.append([finish(1)])
        forgotten = driver.open(path, write=False)
        query(forgotten, "BEGIN")
        query(forgotten, "SELECT * FROM meta")
        log.append([finish(2)])
        assert not log.checkpoint()
        assert log.wal_bytes > 0
        query(forgotten, "COMMIT")
        forgotten.close()
        assert log.checkpoint()

    def test_wait_sees_another_connections_commit(self, log: EventLog, reader: LogReader):
        assert not reader.wait(0, timeout=0.03)
        timer = threading.Timer(0.05, log.append, [[finish(1)]])
        timer.start()
        assert reader.wait(0, timeout=10)
        timer.join()
        assert reader.wait(1, timeout=0)
        assert not reader.wait(2, timeout=0)

    # Feed

    def test_a_subscriber_gets_the_past_and_the_present(self, log: EventLog, path: Path, driver: Driver):
        past = log.append(history())
        feed = CommitFeed(path, driver=driver)
        got: list[Committed] = []
        subscription = feed.subscribe(2, got.extend)
        assert got == past[2:]
        present = log.append([finish(10), refuse(11)])
        assert feed.publish(present) == []
        assert got == past[2:] + present
        assert subscription.position == 10

    # Copies and checks

    def test_a_backup_is_a_whole_log(self, log: EventLog, tmp_path: Path, driver: Driver):
        committed = log.append(history())
        copy = tmp_path / "copy.db"
        log.backup(copy)
        log.append([finish(10)])
        with LogReader.open(copy, driver=driver) as reader:
            assert list(reader.decisions()) == committed
        assert check(copy, full=True, driver=driver).ok
        with pytest.raises(FileExistsError, match="name a new file"):
            log.backup(copy)
        reopened = EventLog.open(copy, driver=driver)
        assert reopened.append([finish(11)])[0].decision_id == 9
        reopened.close()

    def test_a_backup_that_fails_leaves_nothing(
        self, log: EventLog, tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ):
        def full(source: Connection, dest: Connection) -> None:
            query(dest, "CREATE TABLE half (x)")
            raise driver.error("database or disk is full")

        log.append(history())
        with monkeypatch.context() as patch:
            patch.setattr(driver, "backup", full)
            with pytest.raises(driver.error, match="disk is full"):
                log.backup(tmp_path / "copy.db")
        assert not list(tmp_path.glob("copy.db*"))
        log.backup(tmp_path / "copy.db")

    def test_backups_while_writing(self, log: EventLog, tmp_path: Path, driver: Driver):
        log.append([finish(n) for n in range(500)])
        copies = [tmp_path / f"copy-{n}.db" for n in range(5)]
        thread = threading.Thread(target=lambda: [log.backup(copy) for copy in copies])
        thread.start()
        n = 500
        while thread.is_alive():
            log.append([finish(n)])
            n += 1
        thread.join()
        heads = []
        for copy in copies:
            found = check(copy, driver=driver)
            assert found.ok
            heads.append(found.events)
        assert heads == sorted(heads)
        assert heads[0] >= 1000
        assert log.head == 2 * n

    def test_check_counts(self, log: EventLog, path: Path, driver: Driver):
        log.append(history())
        found = check(path, full=True, driver=driver)
        assert found.ok
        assert (found.decisions, found.events, found.gapless, found.break_) == (8, 9, True, None)
        assert (found.driver, found.sqlite_version) == (driver.name, driver.version)

    # People

    def test_views_read_like_a_report(self, log: EventLog, reader: LogReader):
        log.append(history())
        assert query(reader._connection, "SELECT seq, time, type, subject, caused_by FROM timeline")[2] == (
            3, "2023-11-14T22:13:22.250Z", "TaskCancelRequested", "task-2", "CancelTasks",
        )  # fmt: skip
        refusals = query(reader._connection, "SELECT decision_id, command_type, reason, code FROM refusals")
        assert refusals[0] == (4, "DeleteInstance", "There is no inst-0.", "unknown_instance")
        outcomes = query(
            reader._connection, "SELECT outcome, time FROM decisions WHERE decision_id IN (3, 4)"
        )
        assert outcomes == [
            ("accepted", "2023-11-14T22:13:22.250Z"),
            ("rejected", "2023-11-14T22:13:23.250Z"),
        ]


def _fields(each: Draft) -> dict[str, object]:
    return {name: getattr(each, name) for name in each.__struct_fields__}


def _renamed(command):
    fields = {name: getattr(command, name) for name in command.__struct_fields__}
    return type(command)(**{**fields, "command_id": command.command_id + "-again"})
