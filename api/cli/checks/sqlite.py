"""The SQLite libraries: they do what the log needs of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from actors.settings import Settings
from api.cli.checks.finding import Finding
from events.drivers import STDLIB, ApswDriver, Driver, has_wal_reset_bug
from events.errors import DriverMissing

_GET_APSW = "pip install 'cuebook[apsw]' and set log_driver to apsw: it brings a newer SQLite."
_PROBE = [
    "PRAGMA journal_mode = WAL",
    "CREATE TABLE t (body TEXT NOT NULL, name TEXT AS (body ->> 'name') VIRTUAL) STRICT",
    """INSERT INTO t (body) VALUES ('{"name": "cue"}')""",
]


def check(settings: Settings) -> Iterator[Finding]:
    """Findings on both drivers: the one in use must work, the other one is an offer."""
    yield _library(STDLIB, in_use=settings.log_driver == "sqlite3")
    try:
        yield _library(ApswDriver(), in_use=settings.log_driver == "apsw")
    except DriverMissing as error:
        if settings.log_driver == "apsw":
            yield Finding("fail", "sqlite", "log_driver is apsw, which is missing", str(error))
        else:
            yield Finding("ok", "sqlite", "apsw is not installed; the log is kept with Python's sqlite3")


def _library(driver: Driver, *, in_use: bool) -> Finding:
    role = "keeps the log" if in_use else "could keep the log"
    text = f"{driver.name} with SQLite {driver.version} {role}"
    try:
        _try_out(driver)
    except Exception as error:  # whatever the library raises is the finding
        return Finding(
            "fail" if in_use else "warn", "sqlite", f"{text}, but fails its test: {error}", _GET_APSW
        )
    if has_wal_reset_bug(driver.version):
        text += (
            "; it has the WAL-reset bug, which takes two writers: Cuebook has one, so let no other tool write"
        )
        return Finding("warn" if in_use else "ok", "sqlite", text, _GET_APSW if in_use else "")
    return Finding("ok", "sqlite", text)


def _try_out(driver: Driver) -> None:
    """Write, and read through a second connection, what the log's tables are made of."""
    with tempfile.TemporaryDirectory(prefix="cuebook-") as directory:
        path = Path(directory) / "probe.db"
        writer = driver.open(path, write=True)
        try:
            for statement in _PROBE:
                writer.execute(statement).fetchall()
            reader = driver.open(path, write=False)
            try:
                found = reader.execute("SELECT name FROM t").fetchall()
            finally:
                reader.close()
        finally:
            writer.close()
    if [tuple(row) for row in found] != [("cue",)]:
        raise ValueError(f"wrote 'cue' and read {found}")
