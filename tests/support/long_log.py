"""The home of a node that has a long past, made offline."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from itertools import islice
from pathlib import Path

from support.histories import History

from events.log import EventLog
from events.reader import LogReader
from projections.mirror import Mirror
from projections.snapshot import save

BATCH = 500
SNAPSHOT_AGE = 10_000
"""Events since the snapshot: nodes take one in 20,000."""


def make_home(home: Path, n_events: int) -> Path:
    """A home with a log of ``n_events``, a snapshot and tables; the nodes of that history have stopped."""
    home.mkdir(parents=True)
    log, history = EventLog.open(home / "log.db"), History(1, epochs=0.01)
    drafts = iter(history)
    while log.head < n_events:
        log.append(list(islice(drafts, BATCH)))
    log.append(list(history.end()))
    log.close()
    with LogReader.open(log.path) as reader:
        save(reader, home / "snapshots", max(0, reader.head() - SNAPSHOT_AGE))
        mirror = Mirror.open(home / "projections.db", reader, home / "snapshots")
        mirror.catch_up(reader)
        mirror.close()
    return home


def copy_home(home: Path, to: Path) -> None:
    """Give a node, which has not been started yet, this past."""
    shutil.copytree(home, to, dirs_exist_ok=True)


def begins_after(log: Path) -> int:
    """The decision that a log begins after; 0 where it has its past."""
    with LogReader.open(log) as reader:
        base = reader.base()
        return base.decision_id if base is not None else 0


def digest(log: Path, upto: int) -> str:
    """A hash over all columns of all rows up to a decision."""
    connection = sqlite3.connect(f"file:{log}?mode=ro", uri=True)
    sha = hashlib.sha256()
    try:
        for table in ("decisions", "events"):
            sql = f"SELECT * FROM {table} WHERE decision_id <= ? ORDER BY 1"
            for row in connection.execute(sql, (upto,)):
                sha.update(repr(row).encode())
    finally:
        connection.close()
    return sha.hexdigest()
