"""Is a log whole? What `cuebook doctor` and the tests ask."""

from __future__ import annotations

from pathlib import Path

import msgspec

from events.branches import Branch, branches
from events.chain import Break, branch_break, first_break
from events.drivers import STDLIB, Connection, Driver
from events.ends import beginning
from events.schema import open_reading


class LogCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. ``sqlite`` holds SQLite's own complaints, empty where it has none."""

    path: str
    driver: str
    sqlite_version: str
    sqlite: list[str]
    decisions: int
    events: int
    gapless: bool
    """True where seq and decision_id count on without gaps from where the log begins."""
    base: int
    """The decision that the log begins after: 0, or more while its past is still to come."""
    branches: list[Branch]
    """What was rejected when the log was rewound."""
    break_: Break | None = msgspec.field(name="break", default=None)
    """Where the hash chain, of the log or of a branch, stops holding."""

    @property
    def ok(self) -> bool:
        """True where nothing is wrong."""
        return not self.sqlite and self.gapless and self.break_ is None


def check(path: Path, *, full: bool = False, driver: Driver = STDLIB) -> LogCheck:
    """Check a log while it is being written: SQLite's quick check (all of it where ``full``), numbers, chain.

    Raises what opening a log raises.
    """
    connection = open_reading(path, driver)
    try:
        damage = _damage(connection, "integrity_check" if full else "quick_check")
        connection.execute("BEGIN")  # counts of one moment: a log's past may be arriving, or a rewind come
        start = beginning(connection)
        decisions, decisions_gapless = _count(connection, "decisions", "decision_id", start.decision_id)
        events, events_gapless = _count(connection, "events", "seq", start.seq)
        found = branches(connection)
        connection.execute("COMMIT")
        return LogCheck(
            path=str(path),
            driver=driver.name,
            sqlite_version=driver.version,
            sqlite=damage,
            decisions=decisions,
            events=events,
            gapless=decisions_gapless and events_gapless,
            base=start.decision_id,
            branches=found,
            break_=first_break(connection) or _first_branch_break(connection, found),
        )
    finally:
        connection.close()


def _damage(connection: Connection, pragma: str) -> list[str]:
    found = [row[0] for row in connection.execute(f"PRAGMA {pragma}").fetchall()]
    return [] if found == ["ok"] else found


def _first_branch_break(connection: Connection, found: list[Branch]) -> Break | None:
    breaks = (branch_break(connection, each.branch) for each in found)
    return next((each for each in breaks if each is not None), None)


def _count(connection: Connection, table: str, key: str, after: int) -> tuple[int, bool]:
    sql = f"SELECT count(*), coalesce(min({key}), ?), coalesce(max({key}), ?) FROM {table}"
    count, low, high = connection.execute(sql, (after + 1, after)).fetchall()[0]
    return count, low == after + 1 and high == after + count
