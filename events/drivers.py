"""The SQLite libraries that the log can be kept with: Python's own, or apsw (newer and faster).

Use one of them for a log in one process: two copies of SQLite in a process drop each other's file locks
(sqlite.org/howtocorrupt.html, "multiple copies of SQLite linked into the same application").
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from events.errors import DriverMissing

_BUSY_MS = 5_000
"""Milliseconds that a connection waits for one that is opening or closing the file."""


class Cursor(Protocol):
    """Result of a statement."""

    def fetchone(self) -> Any:
        """The next row as a tuple, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        ...


class Connection(Protocol):
    """One connection in autocommit mode: transactions are begun and ended by statements."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Run one statement."""
        ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        """Run one statement for each row of parameters."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Driver(Protocol):
    """What the log needs of a SQLite library. Connections may move between threads, one at a time."""

    @property
    def name(self) -> str:
        """Name of the library."""
        ...

    @property
    def version(self) -> str:
        """Version of SQLite itself, such as ``3.51.3``."""
        ...

    @property
    def error(self) -> type[Exception]:
        """Base class of what the library raises."""
        ...

    def open(self, path: Path, *, write: bool) -> Connection:
        """Open a file, creating it where ``write`` is true, for reading only otherwise."""
        ...

    def backup(self, source: Connection, dest: Connection) -> None:
        """Copy the whole database as it is now while others go on writing it."""
        ...


class StdlibDriver:
    """Python's own sqlite3 module."""

    name = "sqlite3"
    version = sqlite3.sqlite_version
    error = sqlite3.Error

    def open(self, path: Path, *, write: bool) -> Connection:
        """Open a file, see `Driver.open`."""
        uri = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
        timeout = _BUSY_MS / 1000
        return sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)

    def backup(self, source: Connection, dest: Connection) -> None:
        """Copy a database, see `Driver.backup`."""
        cast(sqlite3.Connection, source).backup(cast(sqlite3.Connection, dest))


class ApswDriver:
    """apsw, which brings its own SQLite. Raises `DriverMissing` where it is not installed."""

    name = "apsw"

    def __init__(self) -> None:
        try:
            import apsw
        except ImportError as error:
            raise DriverMissing("apsw is not installed: pip install 'cuebook[apsw]'.") from error
        self._apsw = apsw
        self.version = apsw.sqlite_lib_version()
        self.error: type[Exception] = apsw.Error

    def open(self, path: Path, *, write: bool) -> Connection:
        """Open a file, see `Driver.open`."""
        apsw = self._apsw
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE if write else apsw.SQLITE_OPEN_READONLY
        connection = apsw.Connection(str(path), flags=flags)
        connection.set_busy_timeout(_BUSY_MS)
        return cast(Connection, connection)

    def backup(self, source: Connection, dest: Connection) -> None:
        """Copy a database, see `Driver.backup`."""
        with cast(Any, dest).backup("main", source, "main") as copy:
            copy.step()


STDLIB: Driver = StdlibDriver()


def has_wal_reset_bug(version: str) -> bool:
    """True where this SQLite can corrupt a WAL file that two connections write or checkpoint at once.

    Fixed in 3.51.3 and, for the older lines, in 3.50.7 and 3.44.6 (sqlite.org/wal.html, "the WAL-reset bug").
    One writing connection, which is how the log and the projections are kept, never meets it.
    """
    parts = tuple(int(part) for part in version.split(".")[:3])
    return not (parts >= (3, 51, 3) or (3, 50, 7) <= parts < (3, 51, 0) or (3, 44, 6) <= parts < (3, 45, 0))


def driver_named(name: str) -> Driver:
    """The driver called ``name``. Raises `DriverMissing` where its library is not installed."""
    return ApswDriver() if name == ApswDriver.name else STDLIB
