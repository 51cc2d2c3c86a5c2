"""The schema of projections.db: made with sqlite-utils from schema.sql and views.sql, and its catalogue."""

from __future__ import annotations

import re
import sqlite3
from importlib.resources import files
from pathlib import Path

import msgspec
import sqlite_utils

from projections import fingerprint

SEARCHED = {
    "failures": ("subject", "code", "sentence", "detail"),
    "decisions": ("subject", "asked", "reason"),
}
"""Tables with full-text search, and the columns that it finds words in."""


class Entry(msgspec.Struct, frozen=True):
    """A table, or a view, of projections.db. ``columns`` maps each column to its comment; views have none."""

    name: str
    kind: str
    comment: str
    columns: dict[str, str]


def create(path: Path) -> None:
    """Make an empty projections.db at ``path``, which must not exist yet."""
    db = sqlite_utils.Database(path)
    db.enable_wal()
    db.executescript(_sql("schema.sql") + _sql("views.sql"))
    for table, columns in SEARCHED.items():
        db.table(table).enable_fts(columns, create_triggers=True, tokenize="porter")
    db.executescript(f"PRAGMA user_version = {version()}")
    db.close()


def version() -> int:
    """The ``user_version`` of a database whose rows this code would write the same way."""
    return int(fingerprint.of_rows()[:8], 16) >> 1


def stored_version(connection: sqlite3.Connection) -> int:
    """The version that a database was made with; 0 where it is none of ours."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def catalogue() -> list[Entry]:
    """Every table and view with its comment, tables first, each kind in the order of its file."""
    tables = [_table(text) for text in _statements(_sql("schema.sql"), "TABLE")]
    views = [_view(text) for text in _statements(_sql("views.sql"), "VIEW")]
    return [*tables, *views]


def _sql(name: str) -> str:
    return files("projections").joinpath(name).read_text("utf-8")


def _statements(sql: str, kind: str) -> list[str]:
    return re.findall(rf"^CREATE {kind} .*?;$", sql, re.MULTILINE | re.DOTALL)


def _table(text: str) -> Entry:
    head, *lines = text.splitlines()
    columns = [re.match(r" +([a-z]\w+|at|id) .*?(?:-- (.*))?$", line) for line in lines]
    return Entry(
        name=head.split()[2],
        kind="table",
        comment=_comment(head),
        columns={column[1]: column[2] or "" for column in columns if column},
    )


def _view(text: str) -> Entry:
    head = text.splitlines()[0]
    return Entry(name=head.split()[2], kind="view", comment=_comment(head), columns={})


def _comment(line: str) -> str:
    return line.partition("-- ")[2]
