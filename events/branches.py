"""Branches: decisions that another history has won over, kept with the reason, whole and in order."""

from __future__ import annotations

import msgspec

from events.chain import DECISION_COLUMNS, EVENT_COLUMNS
from events.drivers import Connection
from events.ends import Tail
from events.schema import scalar


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """What one rewind took out of the log: the decisions after ``fork``. ``at`` is Unix seconds.

    ``winner`` names the epoch whose history took their place; ``fork_seq`` is the last event they shared.
    """

    branch: int
    fork: int
    fork_seq: int
    winner: str
    reason: str
    at: float
    decisions: int
    events: int


_REWINDS = "SELECT coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'rewinds'), 0)"

_BRANCHES = """
SELECT branch, fork, fork_seq, winner, branches.reason, branches.at,
       count(*), coalesce(sum(n_events), 0)
FROM branches LEFT JOIN rejected_decisions USING (branch)
GROUP BY branch ORDER BY branch
"""


def rewinds(connection: Connection) -> int:
    """How often the log was rewound. A file of an older format, which a reader leaves as it is, never was."""
    return scalar(connection, _REWINDS)


def branches(connection: Connection) -> list[Branch]:
    """All branches, oldest first."""
    if not rewinds(connection):
        return []
    names = Branch.__struct_fields__
    return [Branch(**dict(zip(names, row, strict=True))) for row in connection.execute(_BRANCHES).fetchall()]


def reject(connection: Connection, fork: Tail, winner: str, reason: str, at: float) -> None:
    """Move everything after ``fork`` into a new branch. Within a transaction."""
    connection.execute(
        "INSERT INTO branches (fork, fork_seq, decision_hash, event_hash, winner, reason, at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (fork.decision_id, fork.seq, fork.decision_hash, fork.event_hash, winner, reason, at),
    )
    _move(connection, "events", f"{EVENT_COLUMNS}, hash", "seq", fork.seq)
    _move(connection, "decisions", f"{DECISION_COLUMNS}, hash", "decision_id", fork.decision_id)
    connection.execute("INSERT OR REPLACE INTO meta SELECT 'rewinds', max(branch) FROM branches")


def _move(connection: Connection, table: str, columns: str, key: str, after: int) -> None:
    connection.execute(
        f"INSERT INTO rejected_{table} (branch, {columns}) "
        f"SELECT (SELECT max(branch) FROM branches), {columns} FROM {table} WHERE {key} > ?",
        (after,),
    )
    connection.execute(f"DELETE FROM {table} WHERE {key} > ?", (after,))
