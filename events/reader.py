"""`LogReader`: reads log.db from any process, while it is being written."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from events.base import Event
from events.catalogue import EVENT_TYPES
from events.chain import Row
from events.codec import EVENTS, encode
from events.drivers import STDLIB, Connection, Driver
from events.from_rows import SELECT_DECISIONS, SELECT_EVENTS, committed, recorded
from events.record import Committed, Recorded
from events.schema import open_reading, scalar

_STREAM = "SELECT seq, epoch, at, version, body FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"

_STREAM_BATCH = 1_000
_EVENT_BATCH = 500
_DECISION_BATCH = 200
"""Rows a query. A query ends its read transaction before its rows are handed out, so that no reader, however
slow, keeps the writer from emptying its WAL."""

_FIRST_POLL_S = 0.001
_LAST_POLL_S = 0.02


class LogReader:
    """A reading connection. One for each thread. It never waits for the writer, nor the writer for it."""

    def __init__(self, connection: Connection) -> None:
        """Use `open`."""
        self._connection = connection

    @classmethod
    def open(cls, path: Path, *, driver: Driver = STDLIB) -> LogReader:
        """Open a log for reading. Raises `LogMissing`, `LogForeign` or `LogTooNew`."""
        return cls(open_reading(path, driver))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def head(self) -> int:
        """The seq of the newest event, 0 where there is none."""
        return scalar(self._connection, "SELECT coalesce(max(seq), 0) FROM events")

    def last_decision(self) -> int:
        """The id of the newest decision, 0 where there is none."""
        return scalar(self._connection, "SELECT coalesce(max(decision_id), 0) FROM decisions")

    def stream(self, after: int = 0, upto: int | None = None) -> Iterator[tuple[int, int, float, Event]]:
        """Events with ``after < seq <= upto`` as (seq, epoch, at, event): the fast path of a replay.

        Raises `Unreadable` or `LogTooNew`, naming the seq.
        """
        upto = self.head() if upto is None else upto
        decode = EVENTS.decode_current
        for rows in self._pages(_STREAM, after, [upto], None, _STREAM_BATCH):
            for seq, epoch, at, version, body in rows:
                try:
                    event = decode(body)
                except msgspec.MsgspecError:
                    event = self._event(seq)
                else:
                    if version != event.VERSION:
                        event = self._event(seq)
                yield seq, epoch, at, event

    def events(
        self,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        types: Collection[str] | None = None,
        subject: str | None = None,
    ) -> Iterator[Recorded]:
        """Events with ``after < seq <= upto``, at most ``limit``, of these ``types``, about ``subject``.

        Raises `ValueError` for a type that no event has, `Unreadable` or `LogTooNew` for a body.
        """
        if unknown := set(types or ()) - EVENT_TYPES.keys():
            raise ValueError(f"No event is called {', '.join(sorted(unknown))}.")
        where = ""
        parameters: list[int | str] = [self.head() if upto is None else upto]
        if types is not None:
            where += " AND type IN (SELECT value FROM json_each(?))"
            parameters.append(encode(sorted(types)))
        if subject is not None:
            where += " AND subject = ?"
            parameters.append(subject)
        sql = f"{SELECT_EVENTS} seq > ? AND seq <= ? {where} ORDER BY seq LIMIT ?"
        for rows in self._pages(sql, after, parameters, limit, _EVENT_BATCH):
            yield from map(recorded, rows)

    def decisions(
        self, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> Iterator[Committed]:
        """Decisions with ``after < decision_id <= upto``, at most ``limit``, with their events.

        Raises `Unreadable` or `LogTooNew` for a body.
        """
        sql = f"{SELECT_DECISIONS} decision_id > ? AND decision_id <= ? ORDER BY decision_id LIMIT ?"
        upto = self.last_decision() if upto is None else upto
        for rows in self._pages(sql, after, [upto], limit, _DECISION_BATCH):
            yield from committed(self._connection, rows)

    def decision(self, decision_id: int) -> Committed | None:
        """A decision by its id."""
        return self._one("decision_id = ?", decision_id)

    def decision_of(self, command_id: str) -> Committed | None:
        """The decision on a command."""
        return self._one("command_id = ?", command_id)

    def decision_at(self, seq: int) -> Committed | None:
        """The decision that an event belongs to."""
        return self._one("decision_id = (SELECT decision_id FROM events WHERE seq = ?)", seq)

    def seq_at(self, at: float) -> int:
        """The last seq with ``at`` not later (Unix seconds), 0 where there is none. Searches from the end."""
        sql = "SELECT seq FROM events WHERE at <= ? ORDER BY seq DESC LIMIT 1"
        found = self._connection.execute(sql, (at,)).fetchall()
        return found[0][0] if found else 0

    def hash_at(self, seq: int) -> str:
        """The chain hash at an event, which no other history has; empty where there is no such event."""
        found = self._connection.execute("SELECT hash FROM events WHERE seq = ?", (seq,)).fetchall()
        return found[0][0] if found else ""

    def wait(self, after_seq: int, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for an event after ``after_seq``; whether there is one.

        For other processes than the writer's, where `events.feed.CommitFeed` is. Looks at the file's
        ``data_version`` each millisecond at first and each 20 ms later.
        """
        deadline, pause = time.monotonic() + timeout, _FIRST_POLL_S
        version = self._data_version()
        while self.head() <= after_seq:
            while (seen := self._data_version()) == version:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                time.sleep(min(pause, left))
                pause = min(pause * 2, _LAST_POLL_S)
            version = seen
        return True

    def _event(self, seq: int) -> Event:
        """An event whose body has not the current shape, or says why it can't be read."""
        return recorded(self._connection.execute(f"{SELECT_EVENTS} seq = ?", (seq,)).fetchall()[0]).event

    def _data_version(self) -> int:
        return scalar(self._connection, "PRAGMA data_version")

    def _one(self, where: str, key: int | str) -> Committed | None:
        rows = self._connection.execute(f"{SELECT_DECISIONS} {where}", (key,)).fetchall()
        return next(committed(self._connection, rows), None)

    def _pages(
        self, sql: str, after: int, parameters: Sequence[int | str], limit: int | None, size: int
    ) -> Iterator[list[Row]]:
        """Rows after a key, a bounded query at a time, until there are no more or ``limit`` is reached."""
        left = sys.maxsize if limit is None else limit
        while left > 0:
            rows = self._connection.execute(sql, (after, *parameters, min(size, left))).fetchall()
            if not rows:
                return
            yield rows
            after = rows[-1][0]
            left -= len(rows)
