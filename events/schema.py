"""The tables of log.db, and what makes a file one."""

from __future__ import annotations

from pathlib import Path

from events.drivers import Connection, Driver
from events.errors import LogForeign, LogMissing, LogTooNew

FORMAT = 2
"""Version of the tables, kept as the file's ``user_version``. Bodies have their own versions."""

APPLICATION_ID = 0x43554542
"""The file's ``application_id``: "CUEB"."""

_TIME = "strftime('%Y-%m-%dT%H:%M:%fZ', at, 'unixepoch')"

_FORMAT_1 = [
    """
    CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    INSERT INTO meta VALUES
        ('what', 'Cuebook decision log'),
        ('format', '1'),
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
]

_FORMAT_2 = [
    f"""
    CREATE TABLE branches (
        branch INTEGER PRIMARY KEY,
        time TEXT AS ({_TIME}) VIRTUAL,
        fork INTEGER NOT NULL,
        fork_seq INTEGER NOT NULL,
        decision_hash TEXT NOT NULL,
        event_hash TEXT NOT NULL,
        winner TEXT NOT NULL,
        reason TEXT NOT NULL,
        at REAL NOT NULL
    ) STRICT
    """,
    f"""
    CREATE TABLE rejected_decisions (
        branch INTEGER NOT NULL REFERENCES branches (branch),
        decision_id INTEGER NOT NULL,
        time TEXT AS ({_TIME}) VIRTUAL,
        outcome TEXT AS (iif(reason IS NULL, 'accepted', 'rejected')) VIRTUAL,
        command_type TEXT NOT NULL,
        command_id TEXT NOT NULL,
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
        PRIMARY KEY (branch, decision_id)
    ) STRICT
    """,
    f"""
    CREATE TABLE rejected_events (
        branch INTEGER NOT NULL REFERENCES branches (branch),
        seq INTEGER NOT NULL,
        time TEXT AS ({_TIME}) VIRTUAL,
        type TEXT NOT NULL,
        subject TEXT NOT NULL,
        version INTEGER NOT NULL,
        body TEXT NOT NULL,
        decision_id INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        origin TEXT NOT NULL,
        at REAL NOT NULL,
        hash TEXT NOT NULL,
        PRIMARY KEY (branch, seq)
    ) STRICT
    """,
    # A row may go where the newest branch has taken it over, and nowhere else. No switch is set for that, so
    # none can be left on: whoever deletes without having kept a copy is refused, this program included.
    *(
        statement
        for table, key in (("decisions", "decision_id"), ("events", "seq"))
        for statement in (
            f"DROP TRIGGER {table}_refuse_delete",
            f"""
            CREATE TRIGGER {table}_refuse_delete BEFORE DELETE ON {table}
            WHEN NOT EXISTS (
                SELECT 1 FROM rejected_{table} AS kept
                WHERE kept.branch = (SELECT max(branch) FROM branches)
                AND kept.{key} = OLD.{key} AND kept.hash = OLD.hash
            )
            BEGIN SELECT RAISE(ABORT, 'the log is append-only: rows of {table} stay as they are'); END
            """,
        )
    ),
    *(
        f"CREATE TRIGGER {table}_refuse_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'what was rejected is kept: rows of {table} stay as they are'); END"
        for table in ("branches", "rejected_decisions", "rejected_events")
        for verb in ("UPDATE", "DELETE")
    ),
    """
    CREATE INDEX epoch_starts ON decisions (decision_id)
    WHERE command_type = 'StartEpoch' AND reason IS NULL
    """,
    """
    CREATE VIEW rejected_branches AS
    SELECT branch, branches.time, branches.reason, winner, fork,
           count(*) AS decisions, sum(n_events) AS events,
           min(rejected_decisions.time) AS first_decided, max(rejected_decisions.time) AS last_decided,
           max(epoch) AS epoch, group_concat(DISTINCT origin) AS origins,
           group_concat(DISTINCT command_type) AS commands
    FROM branches JOIN rejected_decisions USING (branch)
    GROUP BY branch
    """,
    "UPDATE meta SET value = '2' WHERE name = 'format'",
]

_STEPS = {1: _FORMAT_1, 2: _FORMAT_2}
"""What makes each format from the one before it. A new file takes all steps, so that it equals an old one."""


def create_or_check(connection: Connection, path: Path) -> None:
    """Make the tables in an empty file, bring those of an older format up to date, refuse any other file.

    Raises `LogForeign` or `LogTooNew`.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = 0 if _is_empty(connection) else _check(connection, path)
        for step in range(found + 1, FORMAT + 1):
            for statement in _STEPS[step]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {step}")
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


def _check(connection: Connection, path: Path) -> int:
    """The format of a log. Raises `LogMissing`, `LogForeign` or `LogTooNew`."""
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
    return found


def scalar(connection: Connection, sql: str, *parameters: object) -> int:
    """The one integer that a query gives."""
    return connection.execute(sql, parameters).fetchall()[0][0]
