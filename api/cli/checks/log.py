"""The log: whole, and of a healthy size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from actors.settings import Settings
from api.cli.checks.finding import Finding
from events.check import LogCheck
from events.check import check as check_log
from events.errors import LogError, LogMissing
from events.log import WAL_LIMIT


def check(settings: Settings) -> Iterator[Finding]:
    """Findings on log.db: SQLite's own check, numbers without gaps, the hash chain, the size of its WAL."""
    path = settings.log_path
    try:
        found = check_log(path)
    except LogMissing:
        yield Finding("ok", "log", f"there is no log at {path} yet; the first start of a node makes it")
        return
    except LogError as error:
        yield Finding("fail", "log", str(error), "Restore the log from a backup, or name another home.")
        return
    yield _verdict(path, found)
    yield _wal(path)


def _verdict(path: Path, found: LogCheck) -> Finding:
    if found.ok:
        size = path.stat().st_size / 1024**2
        text = f"{path} is whole: {found.decisions} decisions, {found.events} events, {size:.1f} MiB"
        if found.base:
            text += f"; what came before decision {found.base + 1} is still on its way from another node"
        if found.branches:
            text += f"; branches with what was rejected: {len(found.branches)}"
        return Finding("ok", "log", text)
    problems = list(found.sqlite)
    if found.break_ is not None:
        problems.append(f"{found.break_.table} {found.break_.position}: {found.break_.problem}")
    if not found.gapless:
        problems.append("rows are missing")
    advice = "Stop the node, keep a copy of the file, and restore the log from a backup."
    return Finding("fail", "log", f"{path} is damaged: {'; '.join(problems)}", advice)


def _wal(path: Path) -> Finding:
    wal = Path(f"{path}-wal")
    size = os.stat(wal).st_size if wal.exists() else 0
    text = f"its write-ahead log takes {size / 1024**2:.1f} MiB"
    if size > WAL_LIMIT:
        return Finding(
            "warn", "log", text, "Some program holds a read transaction open on it: close that program."
        )
    return Finding("ok", "log", text)
