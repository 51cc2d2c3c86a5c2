"""The node's log as it starts: one that it can't go on with is set aside, never thrown away.

That can only be a log without its past, see `events.ends.Base`. The node then begins with an empty log and
joins again.
"""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path

from actors.replica import Paths
from events.errors import LogIncomplete
from events.files import write_durably
from events.log import EventLog
from projections.snapshot import load_state

logger = logging.getLogger("cuebook.journal")


def mark_unusable(log: Path, why: str) -> None:
    """Have `open_log` set this log aside the next time."""
    write_durably(_mark(log), why.encode())


def open_log(paths: Paths) -> EventLog:
    """Open the log for writing. Raises what `EventLog.open` raises, and `OSError`."""
    log = EventLog.open(paths.log, driver=paths.driver)
    why = _why_unusable(paths)
    if not why:
        return log
    kept = next(name for n in count(1) if not (name := paths.log.with_name(f"aside-{n}.db")).exists())
    try:
        log.backup(kept)
    finally:
        log.close()
    logger.warning("The log is set aside as %s, and the node joins again: %s", kept, why)
    for suffix in ("", "-wal", "-shm"):
        paths.log.with_name(paths.log.name + suffix).unlink(missing_ok=True)
    _mark(paths.log).unlink(missing_ok=True)
    return EventLog.open(paths.log, driver=paths.driver)


def _why_unusable(paths: Paths) -> str:
    mark = _mark(paths.log)
    if mark.exists():
        return mark.read_text()
    with paths.reader() as reader:
        if reader.base() is not None:
            try:
                load_state(reader, paths.snapshots)
            except LogIncomplete as error:
                return f"Its state is lost, because no snapshot fits. {error}"
    return ""


def _mark(log: Path) -> Path:
    return log.with_name(log.name + ".unusable")
