"""`EventLog`: the one writer of log.db."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from events.backup import backup
from events.codec import encode
from events.drivers import STDLIB, Connection, Driver
from events.errors import LogDamaged, LogFailed
from events.from_rows import SELECT_DECISIONS, committed
from events.lock import WriterLock
from events.record import Committed, Draft
from events.schema import create_or_check
from events.to_rows import INSERT_DECISION, INSERT_EVENT, Batch, EncodedDraft, Tail

AUTOCHECKPOINT_PAGES = 16_000
"""Pages (of 4 KiB) in the WAL at which a commit checkpoints: 62 MiB, for fewer and longer pauses."""

WAL_LIMIT = 256 * 1024 * 1024
"""Bytes of WAL above which the log tries to empty it. Only a reader that never ends grows it so."""

_BUSY_MS = 5_000
_TRUNCATE_BUSY_MS = 50


class EventLog:
    """The open log. One a file on the whole machine; used from one thread at a time."""

    def __init__(self, path: Path, driver: Driver, lock: WriterLock, connection: Connection) -> None:
        """Use `open`."""
        self.path = path
        self._driver = driver
        self._lock = lock
        self._connection = connection
        self._wal = f"{path}-wal"
        self._truncate_above = WAL_LIMIT
        self._synchronous = ""
        self._failed = False
        self._tail = _tail(connection, path)

    @classmethod
    def open(cls, path: Path, *, driver: Driver = STDLIB) -> EventLog:
        """Open a log for writing, making it where there is none.

        Raises `LogLocked` where another process (or this one) has it open, `LogForeign`, `LogTooNew`, or
        `LogDamaged` where its newest rows contradict each other.
        """
        lock = WriterLock(path)
        try:
            connection = driver.open(path, write=True)
            try:
                _configure(connection)
                create_or_check(connection, path)
                return cls(path, driver, lock, connection)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            lock.release()
            raise

    @property
    def failed(self) -> bool:
        """True once a write has failed: the log must be opened again."""
        return self._failed

    @property
    def head(self) -> int:
        """The seq of the newest event, 0 where there is none."""
        return self._tail.seq

    @property
    def last_decision(self) -> int:
        """The id of the newest decision, 0 where there is none."""
        return self._tail.decision_id

    def append(self, drafts: Sequence[Draft | EncodedDraft]) -> list[Committed]:
        """Record decisions in one transaction; what is returned is committed, in the order of ``drafts``.

        The commit is on disk (``synchronous=FULL``) unless all drafts hold only observations: those are in
        the file, and a power cut may take the newest of them. A command that the log knows already, or that
        comes twice in ``drafts``, gets the first answer, and nothing is appended for it.

        Raises `DraftRefused` (nothing was written; the log is well) or `LogFailed` (open it again).
        """
        if self._failed:
            raise LogFailed(f"An earlier write to {self.path} failed: close the log and open it again.")
        encoded = [each if isinstance(each, EncodedDraft) else EncodedDraft(each) for each in drafts]
        answers = self._known([item.command_id for item in encoded])
        batch = Batch(self._tail)
        durable = False
        for item in encoded:
            if item.command_id not in answers:
                answers[item.command_id] = batch.add(item)
                durable = durable or not item.draft.observation
        if batch.decisions:
            self._write(batch, durable)
        return [answers[item.command_id] for item in encoded]

    def _write(self, batch: Batch, durable: bool) -> None:
        with self._transaction(durable):
            self._connection.executemany(INSERT_DECISION, batch.decisions)
            self._connection.executemany(INSERT_EVENT, batch.events)
        self._tail = batch.tail
        if self.wal_bytes > self._truncate_above:
            self.checkpoint()

    def _known(self, command_ids: list[str]) -> dict[str, Committed]:
        """The first answers to those commands that the log has already."""
        sql = f"{SELECT_DECISIONS} command_id IN (SELECT value FROM json_each(?))"
        found = self._connection.execute(sql, (encode(command_ids),)).fetchall()
        return {row[1]: answer for row in found for answer in committed(self._connection, [row])}

    @contextmanager
    def _transaction(self, durable: bool) -> Generator[None]:
        synchronous = "FULL" if durable else "NORMAL"
        try:
            if synchronous != self._synchronous:
                self._connection.execute(f"PRAGMA synchronous = {synchronous}")
                self._synchronous = synchronous
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._failed = True
            self._roll_back()
            if isinstance(error, self._driver.error):
                message = (
                    f"A write to {self.path} failed ({error}): see to the disk, then open the log again."
                )
                raise LogFailed(message) from error
            raise

    def _roll_back(self) -> None:
        """Leave the transaction. SQLite has left it already after some errors, such as a full disk."""
        with suppress(self._driver.error):
            self._connection.execute("ROLLBACK")

    @property
    def wal_bytes(self) -> int:
        """Bytes of the write-ahead log: what readers of it hold back grows here."""
        try:
            return os.stat(self._wal).st_size
        except FileNotFoundError:
            return 0

    def checkpoint(self) -> bool:
        """Move the WAL into the database file and empty it. False where a reader prevents it.

        Waits at most 50 ms for readers. After a failure the log tries again by itself when the WAL has grown
        by another `WAL_LIMIT`.
        """
        self._connection.execute(f"PRAGMA busy_timeout = {_TRUNCATE_BUSY_MS}").fetchall()
        busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}").fetchall()
        self._truncate_above = self.wal_bytes + WAL_LIMIT
        return not busy

    def backup(self, dest: Path) -> None:
        """Copy the log to a new file while it is being written. Any thread. Raises `FileExistsError`."""
        backup(self.path, dest, self._driver)

    def close(self) -> None:
        """Close the log and let another process write it."""
        self._connection.close()
        self._lock.release()


def _configure(connection: Connection) -> None:
    """Set up the writing connection, and put on disk what an earlier writer was killed before syncing.

    Without that, the answer to a repeated command could be one that a power cut still takes.
    """
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}").fetchall()
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA fullfsync = 1").fetchall()
    connection.execute("PRAGMA checkpoint_fullfsync = 1").fetchall()
    connection.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_PAGES}").fetchall()
    connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}").fetchall()
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _tail(connection: Connection, path: Path) -> Tail:
    """Where the log ends. Raises `LogDamaged` where its last decision and its last event don't agree."""
    decision = connection.execute(
        "SELECT decision_id, hash, first_seq + n_events - 1 FROM decisions ORDER BY decision_id DESC LIMIT 1"
    ).fetchall()
    event = connection.execute("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1").fetchall()
    decision_id, decision_hash, last_seq = decision[0] if decision else (0, "", 0)
    seq, event_hash = event[0] if event else (0, "")
    if seq != last_seq:
        raise LogDamaged(
            f"{path}: decision {decision_id} ends at event {last_seq} but the last event is {seq}. "
            "Restore the log from a backup."
        )
    return Tail(seq, decision_id, event_hash, decision_hash)
