"""Compares two projection databases table by table: what `rebuild` makes must equal what grew live."""

from __future__ import annotations

import sqlite3
from itertools import zip_longest
from pathlib import Path

from projections import schema

_SHOWN = 5
"""Differing rows that are described of each table."""


def difference(path_a: Path, path_b: Path) -> list[str]:
    """What differs, a sentence a table or row; empty where every row of every table is equal.

    The full-text indexes are left out: they are made from the tables, in an order that does not matter.
    """
    a, b = _open(path_a), _open(path_b)
    try:
        foreign = [path for path, db in ((path_a, a), (path_b, b)) if not _is_of_this_code(db)]
        if foreign:
            return [f"{path} was made by another version of Cuebook, or is not ours" for path in foreign]
        names = [entry.name for entry in schema.catalogue() if entry.kind == "table"]
        return [sentence for name in names for sentence in _table(a, b, name)]
    finally:
        a.close()
        b.close()


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _is_of_this_code(db: sqlite3.Connection) -> bool:
    try:
        return schema.stored_version(db) == schema.version()
    except sqlite3.DatabaseError:
        return False


def _table(a: sqlite3.Connection, b: sqlite3.Connection, name: str) -> list[str]:
    key = ", ".join(row[1] for row in a.execute(f"PRAGMA table_info({name})") if row[5])
    query = f"SELECT * FROM {name} ORDER BY {key}"
    found: list[str] = []
    for row_a, row_b in zip_longest(a.execute(query), b.execute(query)):
        if row_a != row_b:
            found.append(f"{name}: {row_a} against {row_b}")
            if len(found) == _SHOWN:
                return [*found, f"{name}: and perhaps more"]
    return found
