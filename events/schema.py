"""The tables of log.db, and what makes a file one."""

from __future__ import annotations

from pathlib import Path

from events.drivers import Connection, Driver
from events.errors import LogForeign, LogMissing, LogTooNew

FORMAT = 1
"""Version of the tables, kept as the file's ``user_version``. Bodies have their own versions."""

APPLICATION_ID = 0x43554542
"""The file's ``application_id``: "CUEB"."""

_TIME = "strftime('%Y-%m-%dT%H:%M:%fZ', at, 'unixepoch')"

_DDL = [
    """
    CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    f"""
    INSERT INTO meta VALUES
        ('what', 'Cuebook decision log'),
        ('format', '{FORMAT}'),
        ('order', 'decisions and their events, each numbered from 1 without gaps'),
        ('hash', 'see events/chain.py: each row covers the one before it'),
        ('times', 'Unix seconds in "at"; the same as UTC text in "time"')
    """,
    f"""
    CREATE TABLE decisions (
        decision_id INTEGER PRIMARY KEY,
        time TEXT AS ({_TIME}) VIRTUAL,
        outcome TEXT AS (iif(reason IS NULL, 'accepted', 'rejected')) VIRTUAL,
        command_type TEXT NOT NULL,
        command_id TEXT NOT NULL UNIQUE,
        command_version INTEGER NOT NULL,
        command TEXT NOT NULL,
        reason TEXT,
        first_seq INTEGER NOT NULL,
        n_events INTEGER NOT NULL,
        facts TEXT NOT NULL,
        decider TEXT NOT NULL,
        decider_version INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        origin TEXT NOT NULL,
        at REAL NOT NULL,
        hash TEXT NOT NULL,
        CHECK (reason IS NULL OR n_events = 0)
    ) STRICT
    """,
    f"""
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY,
        time TEXT AS ({_TIME}) VIRTUAL,
        type TEXT NOT NULL,
        subject TEXT NOT NULL,
        version INTEGER NOT NULL,
        body TEXT NOT NULL,
        decision_id INTEGER NOT NULL REFERENCES decisions (decision_id),
        epoch INTEGER NOT NULL,
        origin TEXT NOT NULL,
        at REAL NOT NULL,
        hash TEXT NOT NULL
    ) STRICT
    """,
    "CREATE INDEX events_by_subject ON events (subject)",
    *(
        f"CREATE TRIGGER {table}_refuse_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'the log is append-only: rows of {table} stay as they are'); END"
        for table in ("decisions", "events")
        for verb in ("UPDATE", "DELETE")
    ),
    """
    CREATE VIEW timeline AS
    SELECT events.seq, events.time, events.type, events.subject, decisions.command_type AS caused_by,
           events.origin, events.decision_id, events.body
    FROM events JOIN decisions USING (decision_id)
    """,
    """
    CREATE VIEW refusals AS
    SELECT decision_id, time, command_type, reason ->> 'message' AS reason, reason ->> 'code' AS code,
           origin, command
    FROM decisions WHERE reason IS NOT NULL
    """,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
]


def create_or_check(connection: Connection, path: Path) -> None:
    """Make the tables in an empty file; refuse a file that is something else.

    Raises `LogForeign` or `LogTooNew`.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(connection):
            for statement in _DDL:
                connection.execute(statement)
        _check(connection, path)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def open_reading(path: Path, driver: Driver) -> Connection:
    """Open a log for reading only. Raises `LogMissing`, `LogForeign` or `LogTooNew`."""
    if not path.is_file():
        raise LogMissing(f"There is no log at {path}: start a node first, or name another file.")
    connection = driver.open(path, write=False)
    try:
        _check(connection, path)
    except BaseException as error:
        connection.close()
        if isinstance(error, driver.error):
            raise LogForeign(f"{path} can't be read as a SQLite database ({error}).") from error
        raise
    return connection


def _is_empty(connection: Connection) -> bool:
    return scalar(connection, "SELECT count(*) FROM sqlite_schema") == 0


def _check(connection: Connection, path: Path) -> None:
    application_id = scalar(connection, "PRAGMA application_id")
    if application_id != APPLICATION_ID:
        if application_id == 0 and _is_empty(connection):
            raise LogMissing(f"{path} is empty: nothing has been written to this log yet.")
        raise LogForeign(f"{path} is a SQLite database but not a Cuebook log: name another file.")
    found = scalar(connection, "PRAGMA user_version")
    if found > FORMAT:
        raise LogTooNew(
            f"{path} has log format {found} and this version of Cuebook reads up to {FORMAT}: "
            "use the version of Cuebook that wrote it, or a newer one."
        )


def scalar(connection: Connection, sql: str, *parameters: object) -> int:
    """The one integer that a query gives."""
    return connection.execute(sql, parameters).fetchall()[0][0]
