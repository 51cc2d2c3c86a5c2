"""The hash chain: every row of the log covers the row before it.

An event's hash is ``H(hash of the event before, its columns)``; a decision's is ``H(hash of the decision
before, its columns, hash of its last event)``, where the first of all follow the empty string and a decision
without events ends in one. ``H`` is BLAKE2b with 16 bytes, in hexadecimal, over the MessagePack array of its
arguments. A chain shows a changed, inserted or missing row; it can't show that the newest rows were cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import msgspec

from events.drivers import STDLIB, Connection, Driver
from events.ends import Tail, beginning
from events.schema import open_reading, scalar

EVENT_COLUMNS = "seq, epoch, decision_id, type, version, subject, origin, at, body"
DECISION_COLUMNS = (
    "decision_id, command_id, command_type, command_version, command, facts, decider, decider_version, "
    "epoch, origin, reason, first_seq, n_events, at"
)

_pack = msgspec.msgpack.Encoder().encode
_BATCH = 2000
_LAST = "SELECT coalesce(max(decision_id), 0) FROM decisions"
_MOVED = "SELECT value FROM meta WHERE name IN ('base', 'rewinds') ORDER BY name"
"""What changes where the log is rewound, or some of its past arrives."""

Row = tuple[Any, ...]


class Break(msgspec.Struct, frozen=True):
    """The first place where the chain does not hold: a row, by table and position, and what is wrong."""

    table: str
    position: int
    problem: str


def link(before: str, columns: Row, last_event: str | None = None) -> str:
    """The hash of a row after the one whose hash is ``before``; ``last_event`` is for decisions only."""
    covered = (before, *columns) if last_event is None else (before, *columns, last_event)
    return blake2b(_pack(covered), digest_size=16).hexdigest()


def verify_chain(path: Path, driver: Driver = STDLIB) -> Break | None:
    """The first break in a log's chain, or None where it holds. Reads every row, in bounded queries."""
    connection = open_reading(path, driver)
    try:
        return first_break(connection)
    finally:
        connection.close()


def first_break(connection: Connection) -> Break | None:
    """`verify_chain` on an open connection. A rewind, or past that arrives, is no break: it reads again."""
    while True:
        moved = connection.execute(_MOVED).fetchall()
        found = _first_break(connection)
        if found is None or moved == connection.execute(_MOVED).fetchall():
            return found


def _first_break(connection: Connection) -> Break | None:
    """Walks the decisions, each with its events."""
    top = scalar(connection, _LAST)
    start = beginning(connection)
    events = rows(connection, "events", EVENT_COLUMNS, "seq")
    decisions = rows(connection, "decisions", DECISION_COLUMNS, "decision_id", f"decision_id <= {top}")
    found, last = _walk(start, decisions, events, "")
    if found is not None:
        return found
    if last < top:
        return Break("decisions", last + 1, "missing: the log ends before it")
    return _stray(connection, next(events, None), top)


def branch_break(connection: Connection, branch: int) -> Break | None:
    """The first break in the chain of a branch, which follows the decision that it forked from."""
    sql = "SELECT fork_seq, fork, event_hash, decision_hash FROM branches WHERE branch = ?"
    start = Tail(*connection.execute(sql, (branch,)).fetchall()[0])
    where = f"branch = {branch}"
    events = rows(connection, "rejected_events", EVENT_COLUMNS, "seq", where)
    decisions = rows(connection, "rejected_decisions", DECISION_COLUMNS, "decision_id", where)
    found, last = _walk(start, decisions, events, "rejected_")
    if found is not None:
        return found
    if last == start.decision_id:
        return Break("rejected_decisions", last + 1, f"missing: branch {branch} is empty")
    stray = next(events, None)
    return None if stray is None else Break("rejected_events", stray[0], "belongs to no decision")


def _walk(
    start: Tail, decisions: Iterator[Row], events: Iterator[Row], prefix: Literal["", "rejected_"]
) -> tuple[Break | None, int]:
    """The first break in a chain after ``start``, and the last decision before it."""
    seq, decision_id, event_before, before = start
    for decision_id, row in enumerate(decisions, start.decision_id + 1):
        *columns, stored = row
        if columns[0] != decision_id:
            return _broken(f"{prefix}decisions", decision_id, f"missing: the next decision is {columns[0]}")
        first_seq, n_events = columns[11], columns[12]
        if first_seq != seq + 1:
            return _broken(f"{prefix}decisions", decision_id, f"first_seq is {first_seq}, not {seq + 1}")
        last_event = ""
        for seq in range(first_seq, first_seq + n_events):
            event = next(events, None)
            problem = _event_problem(event, seq, decision_id, event_before)
            if event is None or problem:
                return _broken(f"{prefix}events", seq, problem)
            last_event = event_before = event[-1]
        before = link(before, tuple(columns), last_event)
        if before != stored:
            problem = "its hash does not match its columns and what went before"
            return _broken(f"{prefix}decisions", decision_id, problem)
    return None, decision_id


def _broken(table: str, position: int, problem: str) -> tuple[Break, int]:
    return Break(table, position, problem), position - 1


def _event_problem(row: Row | None, seq: int, decision_id: int, before: str) -> str:
    if row is None:
        return "missing: the log ends before it"
    if row[0] != seq:
        return f"missing: the next event is {row[0]}"
    if row[2] != decision_id:
        return f"belongs to decision {row[2]}, not {decision_id}"
    if link(before, row[:-1]) != row[-1]:
        return "its hash does not match its columns and what went before"
    return ""


def _stray(connection: Connection, event: Row | None, top: int) -> Break | None:
    """An event after those of decision ``top`` must be of a decision that was made since."""
    if event is None or top < event[2] <= scalar(connection, _LAST):
        return None
    return Break("events", event[0], "belongs to no decision")


def rows(connection: Connection, table: str, columns: str, key: str, where: str = "true") -> Iterator[Row]:
    """The rows of a table with their hash, in order of ``key``, a bounded query at a time."""
    after = 0
    sql = f"SELECT {columns}, hash FROM {table} WHERE {key} > ? AND {where} ORDER BY {key} LIMIT {_BATCH}"
    while batch := connection.execute(sql, (after,)).fetchall():
        yield from batch
        after = batch[-1][0]
