"""The write-ahead log does not grow without end."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from log_samples import finish

import events.log
from events.drivers import STDLIB, Connection, Cursor
from events.log import EventLog
from events.reader import LogReader


def batches(log: EventLog, count: int, size: int = 200) -> int:
    """Append so many batches; the greatest WAL seen."""
    greatest = 0
    for _ in range(count):
        first = log.last_decision
        log.append([finish(first + n) for n in range(size)])
        greatest = max(greatest, log.wal_bytes)
    return greatest


def test_the_wal_stays_near_the_checkpoint_while_followers_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(events.log, "AUTOCHECKPOINT_PAGES", 100)
    monkeypatch.setattr(events.log, "WAL_LIMIT", 1 << 20)
    log = EventLog.open(tmp_path / "log.db")
    stop = threading.Event()
    followers = [threading.Thread(target=_follow, args=(log.path, stop)) for _ in range(3)]
    for thread in followers:
        thread.start()
    greatest = batches(log, 100)
    stop.set()
    for thread in followers:
        thread.join()
    assert log.path.stat().st_size > 8 << 20
    assert greatest < 4 << 20
    log.close()


def _follow(path: Path, stop: threading.Event) -> None:
    with LogReader.open(path) as reader:
        read = 0
        while not stop.is_set():
            read += sum(1 for _ in reader.stream(after=read))


def test_a_wal_that_a_forgotten_reader_grew_shrinks_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(events.log, "WAL_LIMIT", 1 << 20)
    log = EventLog.open(tmp_path / "log.db")
    batches(log, 1)
    forgotten = STDLIB.open(log.path, write=False)
    forgotten.execute("BEGIN")
    forgotten.execute("SELECT * FROM meta").fetchall()
    assert batches(log, 30) > 2 << 20
    forgotten.execute("COMMIT")
    forgotten.close()
    batches(log, 20)
    assert log.wal_bytes < 2 << 20
    log.close()


class NoRoom:
    """A connection whose database file can't take what the WAL has."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Cursor:
        if sql == "PRAGMA wal_checkpoint(TRUNCATE)":
            raise sqlite3.OperationalError("database or disk is full")
        return self._connection.execute(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_a_commit_holds_though_its_wal_can_not_be_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = EventLog.open(tmp_path / "log.db")
    with monkeypatch.context() as patch:
        patch.setattr(log, "_connection", NoRoom(log._connection))
        patch.setattr(log, "_truncate_above", 0)
        assert [each.decision_id for each in log.append([finish(1)])] == [1]
        assert (log.checkpoint(), log.failed) == (False, False)
        assert log.append([finish(2)])[0].first_seq == 3
    assert log._connection.execute("PRAGMA busy_timeout").fetchall() == [(5000,)]
    assert log.checkpoint()
    log.close()


def test_closing_leaves_one_file(tmp_path: Path):
    log = EventLog.open(tmp_path / "log.db")
    batches(log, 3)
    log.close()
    assert log.wal_bytes == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.db", "log.db.lock"]
