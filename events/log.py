"""`EventLog`: the one writer of log.db."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from events.backup import backup
from events.branches import reject
from events.codec import encode
from events.drivers import STDLIB, Connection, Driver
from events.ends import EMPTY, Base, Tail, epoch_at, moved_down, newest, read_base, tail_at, write_base
from events.errors import EntriesRefused, LogFailed, LogForeign, LogIncomplete
from events.from_rows import SELECT_DECISIONS, committed
from events.lock import WriterLock
from events.record import Committed, Draft
from events.replication import Arrived, decode_entry
from events.schema import create_or_check
from events.to_rows import INSERT_DECISION, INSERT_EVENT, Batch, EncodedDraft

AUTOCHECKPOINT_PAGES = 16_000
"""Pages (of 4 KiB) in the WAL at which a commit checkpoints: 62 MiB, for fewer and longer pauses."""

WAL_LIMIT = 256 * 1024 * 1024
"""Bytes of WAL above which the log tries to empty it. Only a reader that never ends grows it so."""

_BUSY_MS = 5_000
_TRUNCATE_BUSY_MS = 50

_logger = logging.getLogger(__name__)


class Rewound(NamedTuple):
    """What a rewind took out of the log, and what it appended instead."""

    rejected: list[Committed]
    appended: list[Committed]


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
        self._tail = newest(connection, path)
        self.writes = 0
        """Transactions since the log was opened: while it is the same, so is what the log has."""

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
            except BaseException as error:
                connection.close()
                if isinstance(error, driver.error):
                    raise LogForeign(f"{path} can't be read as a SQLite database ({error}).") from error
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

    @property
    def tail(self) -> Tail:
        """Where the log ends."""
        return self._tail

    def append(self, drafts: Sequence[Draft | EncodedDraft]) -> list[Committed]:
        """Record decisions in one transaction; what is returned is committed, in the order of ``drafts``.

        The commit is on disk (``synchronous=FULL``) unless all drafts hold only observations: those are in
        the file, and a power cut may take the newest of them. A command that the log knows already, or that
        comes twice in ``drafts``, gets the first answer, and nothing is appended for it.

        Raises `DraftRefused` (nothing was written; the log is well) or `LogFailed` (open it again).
        """
        self._refuse_failed()
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

    def decided(self, command_ids: Sequence[str]) -> dict[str, Committed]:
        """The decisions on those of these commands that the log has."""
        return self._known(list(command_ids))

    def begin_after(self, base: Base) -> None:
        """Let an empty log begin after that decision of another log; `backfill` takes what came before.

        Raises `EntriesRefused` where the log has begun, and `LogFailed`.
        """
        self._refuse_failed()
        if self._tail != EMPTY:
            raise EntriesRefused(
                f"{self.path} has begun already: only an empty log can begin after another's decision."
            )
        with self._transaction(durable=True):
            write_base(self._connection, base)
        self._tail = base.tail

    def append_entries(self, entries: Sequence[bytes]) -> list[Committed]:
        """Take over another log's next decisions as they are, in one transaction, as durable as by `append`.

        Raises `EntriesRefused` for a gap, another history, a falling epoch, bytes that were changed, or a
        command that the log has; `LogTooNew` or `Unreadable`, naming the event, for a body that this version
        can't read. Nothing was written then, and the log is well. Raises `LogFailed` as `append` does.
        """
        self._refuse_failed()
        arrived = self._arrived(entries, self._tail)
        if arrived.decisions:
            self._write(arrived, durable=not arrived.observations)
        return arrived.committed

    def rewind(self, fork: int, winner: str, reason: str, then: Sequence[bytes], *, at: float) -> Rewound:
        """Move all decisions after ``fork`` into a new branch and append ``then``: one durable transaction.

        ``winner`` names the epoch that won, ``at`` is the time (Unix seconds). Nothing is moved, and no
        branch made, where the log ends at ``fork``. Raises `LogIncomplete` for a fork before the log's base,
        `EntriesRefused` for one beyond its end, and what `append_entries` raises.
        """
        self._refuse_failed()
        tail = self._tail_at(fork)
        arrived = self._arrived(then, tail)
        sql = f"{SELECT_DECISIONS} decision_id > ? ORDER BY decision_id"
        rejected = list(committed(self._connection, self._connection.execute(sql, (fork,)).fetchall()))
        with self._transaction(durable=True):
            if rejected:
                reject(self._connection, tail, winner, reason, at)
            self._insert(arrived)
        self._tail = arrived.tail
        self._bound_wal()
        return Rewound(rejected, arrived.committed)

    def backfill(self, entries: Sequence[bytes]) -> Base | None:
        """Put the decisions right before the log's base, in order, where they belong: the base moves down.

        Returns what the log begins after now, None once it has its whole past. Each batch is checked by the
        hashes in the base, so that the log holds at any moment. A power cut may take the last batches.
        Raises `EntriesRefused` where they are not what the base follows, and what `append_entries` raises.
        """
        self._refuse_failed()
        base = read_base(self._connection)
        if base is None or not entries:
            return base
        arrived = Arrived(decode_entry(entries[0]).start, 0)
        for data in entries:
            arrived.add(data)
        if arrived.tail != base.tail:
            raise EntriesRefused(
                f"Decisions up to {arrived.tail} are not the past of a log that begins after {base.tail}."
            )
        self._refuse_known(arrived, self.last_decision)
        lower = moved_down(base, decode_entry(entries[0]).start)
        with self._transaction(durable=False):
            self._insert(arrived)
            write_base(self._connection, lower)
        self._bound_wal()
        return lower

    def _arrived(self, entries: Sequence[bytes], tail: Tail) -> Arrived:
        arrived = Arrived(tail, epoch_at(self._connection, tail.decision_id))
        for data in entries:
            arrived.add(data)
        self._refuse_known(arrived, tail.decision_id)
        return arrived

    def _refuse_known(self, arrived: Arrived, upto: int) -> None:
        """A command is decided on once; up to ``upto`` the log has its answers already."""
        command_ids = [each.command_id for each in arrived.committed]
        for known in self._known(command_ids).values():
            if known.decision_id <= upto:
                raise EntriesRefused(
                    f"Command {known.command_id} came again: decision {known.decision_id} is about it."
                )

    def _tail_at(self, decision_id: int) -> Tail:
        base = read_base(self._connection)
        if base is not None and decision_id < base.decision_id:
            raise LogIncomplete(
                f"The log can't be rewound to decision {decision_id}: it begins after {base.decision_id}. "
                "Set the file aside and join again."
            )
        if decision_id > self.last_decision:
            raise EntriesRefused(
                f"The log can't be rewound to decision {decision_id}: it ends at {self.last_decision}."
            )
        return tail_at(self._connection, decision_id)

    def _write(self, batch: Batch | Arrived, durable: bool) -> None:
        with self._transaction(durable):
            self._insert(batch)
        self._tail = batch.tail
        self._bound_wal()

    def _insert(self, batch: Batch | Arrived) -> None:
        self._connection.executemany(INSERT_DECISION, batch.decisions)
        self._connection.executemany(INSERT_EVENT, batch.events)

    def _refuse_failed(self) -> None:
        if self._failed:
            raise LogFailed(f"An earlier write to {self.path} failed: close the log and open it again.")

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
            self.writes += 1
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

    def _bound_wal(self) -> None:
        if self.wal_bytes > self._truncate_above:
            self.checkpoint()

    def checkpoint(self) -> bool:
        """Move the WAL into the database file and empty it. False where a reader or the disk prevents it.

        Waits at most 50 ms for readers. Either way what was committed is in the log. After a failure the log
        tries again by itself when the WAL has grown by another `WAL_LIMIT`.
        """
        self._connection.execute(f"PRAGMA busy_timeout = {_TRUNCATE_BUSY_MS}").fetchall()
        try:
            busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
        except self._driver.error as error:
            _logger.warning("The write-ahead log of %s can't be emptied: %s", self.path, error)
            busy = True
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
