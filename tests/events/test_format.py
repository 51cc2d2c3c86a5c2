"""A log of an older format is brought up to date where it lies, and read where it may not be written."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from log_samples import finish, query

from events.chain import verify_chain
from events.check import check
from events.log import EventLog
from events.reader import LogReader
from events.schema import FORMAT

FORMAT_1 = Path(__file__).with_name("corpus") / "log-format-1.sql"
SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A log of 8 decisions and 9 events in format 1, as its version wrote it."""
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(FORMAT_1.read_text())
    connection.close()
    return path


def facts_of(path: Path) -> tuple[list[tuple], list[tuple], list[tuple]]:
    connection = sqlite3.connect(path)
    try:
        schema = [(*row[:3], " ".join((row[3] or "").split())) for row in query(connection, SCHEMA)]
        return schema, query(connection, "PRAGMA user_version"), query(connection, "SELECT * FROM meta")
    finally:
        connection.close()


def test_format_1_becomes_what_a_new_log_is(old: Path, tmp_path: Path):
    with LogReader.open(old) as reader:
        before = list(reader.decisions())
    EventLog.open(old).close()
    EventLog.open(tmp_path / "new.db").close()
    assert facts_of(old) == facts_of(tmp_path / "new.db")
    with LogReader.open(old) as reader:
        assert list(reader.decisions()) == before
        assert len(before) == 8
    assert check(old, full=True).ok


def test_format_1_goes_on(old: Path):
    log = EventLog.open(old)
    assert log.append([finish(2), finish(20)])[1].first_seq == 10
    assert len(log.rewind(5, "w", "r", [], at=1.0).rejected) == 4
    log.close()
    log = EventLog.open(old)
    assert (log.last_decision, log.head) == (5, 5)
    log.close()
    assert check(old).ok


def test_format_1_is_read_as_it_is(old: Path):
    assert check(old).ok
    assert verify_chain(old) is None
    with LogReader.open(old) as reader:
        assert (reader.head(), reader.last_decision(), len(list(reader.stream()))) == (9, 8, 9)
        assert (reader.runs(), reader.base()) == ([(1, "node-1", "inc-1", 1, 8)], None)
        assert (reader.branches(), reader.rewinds(), len(reader.entries(0, 9, 10**6))) == ([], 0, 8)
    assert facts_of(old)[1] == [(1,)]
    assert FORMAT == 2
