"""Whoever changes a row, in any column, is found at that row."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from log_samples import finish, history, write_log

import events.check
from events import chain, ends
from events.chain import DECISION_COLUMNS, EVENT_COLUMNS, Break, link, verify_chain
from events.check import check
from events.drivers import Connection
from events.ends import Tail
from events.log import EventLog
from events.reader import LogReader

COLUMNS = [("events", "seq", name) for name in [*EVENT_COLUMNS.split(", "), "hash"]] + [
    ("decisions", "decision_id", name) for name in [*DECISION_COLUMNS.split(", "), "hash"]
]

COPY = (
    "{} INTO events SELECT {}, type, subject, version, body, decision_id, epoch, origin, at, hash "
    "FROM events WHERE seq = {}"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.db", history())


@pytest.fixture
def forge(path: Path) -> Callable[[str], None]:
    def forge(sql: str) -> None:
        connection = sqlite3.connect(path)
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.executescript(sql)
        connection.close()

    return forge


def test_an_untouched_log_holds(path: Path):
    assert verify_chain(path) is None


@pytest.mark.parametrize(("table", "key", "column"), COLUMNS, ids=lambda value: str(value))
def test_a_changed_column_is_found_in_its_row(
    path: Path, forge: Callable[[str], None], table: str, key: str, column: str
):
    changed = {
        "seq": "seq + 100",
        "decision_id": "decision_id + 100",
        "reason": """'{"code":"x","message":"y","detail":{}}'""",
    }.get(column, f"iif(typeof({column}) = 'text', {column} || ' ', {column} + 1)")
    row = 4 if column == "reason" or table == "events" else 3
    forge(f"UPDATE {table} SET {column} = {changed} WHERE {key} = {row}")
    found = verify_chain(path)
    assert found is not None
    # A decision that claims one event too many is found at that event.
    assert (found.table, found.position) == (("events", 5) if column == "n_events" else (table, row))
    report = check(path)
    assert not report.ok
    assert report.break_ == found


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM events WHERE seq = 4", Break("events", 4, "missing: the next event is 5")),
        ("DELETE FROM events WHERE seq = 9", Break("events", 9, "missing: the log ends before it")),
        ("DELETE FROM decisions WHERE decision_id = 4", Break("decisions", 4, "missing: the next decision")),
        ("DELETE FROM decisions WHERE decision_id = 8", Break("events", 8, "belongs to no decision")),
        (
            COPY.format("INSERT", 10, 9),
            Break("events", 10, "belongs to no decision"),
        ),
        (
            "UPDATE events SET body = (SELECT body FROM events WHERE seq = 9) WHERE seq = 7",
            Break("events", 7, "its hash does not match"),
        ),
        (
            "UPDATE decisions SET n_events = 1 WHERE decision_id = 3;"
            "UPDATE decisions SET first_seq = 4 WHERE decision_id = 4;"
            "UPDATE decisions SET n_events = 2, first_seq = 4 WHERE decision_id = 5",
            Break("decisions", 3, "its hash does not match"),
        ),
    ],
)  # fmt: skip
def test_missing_extra_and_swapped_rows(path: Path, forge: Callable[[str], None], sql: str, expected: Break):
    forge(sql)
    found = verify_chain(path)
    assert found is not None
    assert (found.table, found.position) == (expected.table, expected.position)
    assert found.problem.startswith(expected.problem)


def test_a_forger_who_repairs_one_hash_is_found_at_the_next_row(path: Path, forge: Callable[[str], None]):
    connection = sqlite3.connect(path)
    (before,) = connection.execute("SELECT hash FROM events WHERE seq = 3").fetchone()
    row = connection.execute(f"SELECT {EVENT_COLUMNS} FROM events WHERE seq = 4").fetchone()
    connection.close()
    body = row[-1].replace("stop", "length")
    forged = link(before, (*row[:-1], body))
    forge(f"UPDATE events SET body = '{body}', hash = '{forged}' WHERE seq = 4")
    found = verify_chain(path)
    assert found is not None
    assert (found.table, found.position) == ("decisions", 3)


def test_replacing_a_row_gets_past_the_triggers_but_not_the_chain(path: Path):
    connection = sqlite3.connect(path)
    connection.execute(COPY.format("INSERT OR REPLACE", 5, 4))
    connection.commit()
    connection.close()
    found = verify_chain(path)
    assert found is not None
    assert (found.table, found.position) == ("events", 5)


def test_a_rewind_meanwhile_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch):
    log = EventLog.open(path)
    monkeypatch.setattr(chain, "_BATCH", 2)
    links = chain.link

    def rewound_in_the_middle(*columns: Any) -> str:
        if log.last_decision == 8 and columns[1][0] == 4:
            log.rewind(2, "w", "r", [], at=1.0)
            log.append([finish(n) for n in range(100, 110)])
        return links(*columns)

    monkeypatch.setattr(chain, "link", rewound_in_the_middle)
    assert verify_chain(path) is None
    assert log.last_decision == 12
    log.close()


def test_past_that_arrives_meanwhile_is_no_damage(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = EventLog.open(tmp_path / "joined.db")
    with LogReader.open(path) as reader:
        log.begin_after(reader.base_at(6))
        log.append_entries(reader.entries(6, 9, 1 << 20))
        past = reader.entries_upto(6, 9, 1 << 20)

    def beginning_and_more(connection: Connection) -> Tail:
        start = ends.beginning(connection)
        if arriving:
            log.backfill([arriving.pop()])
        return start

    for module in (chain, events.check):
        monkeypatch.setattr(module, "beginning", beginning_and_more)
    arriving = past[3:]
    assert check(log.path).ok
    assert arriving == []
    arriving = past[:3]
    assert verify_chain(log.path) is None
    assert arriving == []
    assert check(log.path).base == 0
    log.close()


def test_verifying_while_the_log_is_written(path: Path):
    log = EventLog.open(path)
    for n in range(100, 160):
        log.append([finish(n)])
        assert verify_chain(path) is None
    log.close()
