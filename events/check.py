"""Is a log whole? What `cuebook doctor` and the tests ask."""

from __future__ import annotations

from pathlib import Path

import msgspec

from events.chain import Break, first_break
from events.drivers import STDLIB, Connection, Driver
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
    """True where seq and decision_id count from 1 to the number of rows."""
    break_: Break | None = msgspec.field(name="break", default=None)
    """Where the hash chain stops holding."""

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
        decisions, decisions_gapless = _count(connection, "decisions", "decision_id")
        events, events_gapless = _count(connection, "events", "seq")
        return LogCheck(
            path=str(path),
            driver=driver.name,
            sqlite_version=driver.version,
            sqlite=damage,
            decisions=decisions,
            events=events,
            gapless=decisions_gapless and events_gapless,
            break_=first_break(connection),
        )
    finally:
        connection.close()


def _damage(connection: Connection, pragma: str) -> list[str]:
    found = [row[0] for row in connection.execute(f"PRAGMA {pragma}").fetchall()]
    return [] if found == ["ok"] else found


def _count(connection: Connection, table: str, key: str) -> tuple[int, bool]:
    sql = f"SELECT count(*), coalesce(min({key}), 1), coalesce(max({key}), 0) FROM {table}"
    count, low, high = connection.execute(sql).fetchall()[0]
    return count, low == 1 and high == count
