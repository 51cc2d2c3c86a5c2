"""A machine's disk: real files. It outlives the processes; a power cut takes what SQLite had not synced."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from events.drivers import STDLIB, Connection, Cursor

LOG = "log.db"
_WAL_HEADER, _FRAME_HEADER = 32, 24
_INDEX = struct.Struct("=14xHI12x8s")
"""Of the WAL index (sqlite.org/walformat.html): page size, frames that are valid, the salts of the WAL."""


class Valid(NamedTuple):
    """How much of the WAL file counts."""

    page_size: int
    frames: int
    salts: bytes

    def cut(self, wal: Path) -> None:
        """Leave no more than that of a WAL; nothing where it has begun anew since."""
        data = wal.read_bytes()
        same = data[16:24] == self.salts
        length = _WAL_HEADER + self.frames * (self.page_size + _FRAME_HEADER) if same else 0
        wal.write_bytes(data[:length])


class Disk:
    """A directory for each process, which begins as a copy of what the last one left."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._processes = 0
        self.driver = TrackedDriver()
        self.home = self._new_home()

    @property
    def log(self) -> Path:
        """The log's file."""
        return self.home / LOG

    def crash(self, *, power: bool) -> None:
        """Take the files from the process as they are; with the power goes what was not synced."""
        old, self.home = self.home, self._new_home()
        synced, self.driver = self.driver, TrackedDriver()
        for file in old.iterdir():
            if file.is_dir():
                shutil.copytree(file, self.home / file.name)
            elif not file.name.endswith(("-shm", ".lock")):
                shutil.copyfile(file, self.home / file.name)
        wal = self.log.with_name(f"{LOG}-wal")
        if power and wal.exists() and synced.synced is not None:
            synced.synced.cut(wal)
        synced.close_all()
        shutil.rmtree(old)

    def _new_home(self) -> Path:
        self._processes += 1
        home = self._root / str(self._processes)
        home.mkdir(parents=True)
        return home


class TrackedDriver:
    """Python's SQLite. Knows its connections, and what of the log would be there after a power cut."""

    name = STDLIB.name
    version = STDLIB.version
    error = STDLIB.error

    def __init__(self) -> None:
        self.synced: Valid | None = None
        self._connections: list[Connection] = []

    def open(self, path: Path, *, write: bool) -> Connection:
        connection = STDLIB.open(path, write=write)
        self._connections.append(connection)
        return _Writing(connection, path, self) if write and path.name == LOG else connection

    def backup(self, source: Connection, dest: Connection) -> None:
        source = source.connection if isinstance(source, _Writing) else source
        STDLIB.backup(source, dest)

    def close_all(self) -> None:
        """What the end of a process does."""
        for connection in self._connections:
            connection.close()


class _Writing:
    """The writing connection: notes after each synced commit how far the file is on the disk."""

    def __init__(self, connection: Connection, path: Path, driver: TrackedDriver) -> None:
        self.connection = connection
        self._driver = driver
        self._path = path
        self._index = -1
        self._full = True

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        cursor = self.connection.execute(sql, parameters)
        if sql.startswith("PRAGMA synchronous"):
            self._full = sql.endswith("FULL")
        elif (sql == "COMMIT" and self._full) or sql.startswith("PRAGMA wal_checkpoint"):
            self._note()
        return cursor

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        return self.connection.executemany(sql, parameters)

    def close(self) -> None:
        if self._index >= 0:
            os.close(self._index)
            self._index = -1
        self.connection.close()

    def _note(self) -> None:
        if self._index < 0:
            try:
                self._index = os.open(f"{self._path}-shm", os.O_RDONLY)
            except FileNotFoundError:
                return
        page_size, frames, salts = _INDEX.unpack(os.pread(self._index, _INDEX.size, 0))
        self._driver.synced = Valid(page_size or 65_536, frames, salts)
