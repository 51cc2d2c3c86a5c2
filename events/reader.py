"""`LogReader`: reads log.db from any process, while it is being written."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from events.base import Event
from events.branches import Branch, branches, rewinds
from events.catalogue import EVENT_TYPES
from events.chain import Row
from events.codec import EVENTS, encode
from events.drivers import STDLIB, Connection, Driver
from events.ends import Base, Run, newest_run, read_base, runs, tail_at
from events.errors import LogIncomplete, LogRewound
from events.from_rows import SELECT_DECISIONS, SELECT_EVENTS, committed, recorded
from events.record import Committed, Recorded
from events.replication import entries_after, entries_upto
from events.schema import open_reading, scalar

_STREAM = "SELECT seq, epoch, at, version, body FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"

_BASE = "SELECT value ->> '{}' FROM meta WHERE name = 'base'"
_HEAD = f"SELECT coalesce(max(seq), ({_BASE.format('seq')}), 0) FROM events"
_LAST_DECISION = f"SELECT coalesce(max(decision_id), ({_BASE.format('decision_id')}), 0) FROM decisions"

_STREAM_BATCH = 1_000
_EVENT_BATCH = 500
_DECISION_BATCH = 50
"""Rows a query. A query ends its read transaction before its rows are handed out, so that no reader, however
slow, keeps the writer from emptying its WAL."""

Item = TypeVar("Item")

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
        return scalar(self._connection, _HEAD)

    def last_decision(self) -> int:
        """The id of the newest decision, 0 where there is none."""
        return scalar(self._connection, _LAST_DECISION)

    def stream(self, after: int = 0, upto: int | None = None) -> Iterator[tuple[int, int, float, Event]]:
        """Events with ``after < seq <= upto`` as (seq, epoch, at, event): the fast path of a replay.

        Raises `Unreadable` or `LogTooNew`, naming the seq, `LogRewound` or `LogIncomplete`.
        """
        self._refuse_before_base(after, "seq")
        upto = self.head() if upto is None else upto
        decode = EVENTS.decode_current
        for rows in self._pages(_STREAM, after, [upto], None, _STREAM_BATCH, list):
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

        Raises `ValueError` for a type that no event has, `Unreadable` or `LogTooNew` for a body, `LogRewound`
        or `LogIncomplete`.
        """
        self._refuse_before_base(after, "seq")
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
        for rows in self._pages(sql, after, parameters, limit, _EVENT_BATCH, list):
            yield from map(recorded, rows)

    def decisions(
        self, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> Iterator[Committed]:
        """Decisions with ``after < decision_id <= upto``, at most ``limit``, with their events.

        Raises `Unreadable` or `LogTooNew` for a body, `LogRewound` or `LogIncomplete`.
        """
        self._refuse_before_base(after, "decision_id")
        sql = f"{SELECT_DECISIONS} decision_id > ? AND decision_id <= ? ORDER BY decision_id LIMIT ?"
        upto = self.last_decision() if upto is None else upto
        for rows in self._pages(sql, after, [upto], limit, _DECISION_BATCH, self._with_events):
            yield from rows

    def decision(self, decision_id: int) -> Committed | None:
        """A decision by its id. Raises `LogIncomplete`."""
        self._refuse_before_base(decision_id - 1, "decision_id")
        return self._one("decision_id = ?", decision_id)

    def decision_of(self, command_id: str) -> Committed | None:
        """The decision on a command."""
        return self._one("command_id = ?", command_id)

    def decision_at(self, seq: int) -> Committed | None:
        """The decision that an event belongs to. Raises `LogIncomplete`."""
        self._refuse_before_base(seq - 1, "seq")
        return self._one("decision_id = (SELECT decision_id FROM events WHERE seq = ?)", seq)

    def decision_id_at(self, seq: int) -> int:
        """The id of the decision that an event belongs to, or that the log's base is; 0 where neither is."""
        sql = "SELECT decision_id FROM events WHERE seq = ?"
        found = self._connection.execute(sql, (seq,)).fetchall()
        if found:
            return found[0][0]
        base = self.base()
        return base.decision_id if base is not None and base.seq == seq else 0

    def seq_at(self, at: float) -> int:
        """The last seq with ``at`` not later (Unix seconds), 0 where there is none. Searches from the end."""
        sql = "SELECT seq FROM events WHERE at <= ? ORDER BY seq DESC LIMIT 1"
        found = self._connection.execute(sql, (at,)).fetchall()
        return found[0][0] if found else 0

    def hash_at(self, seq: int) -> str:
        """The chain hash at an event, which no other history has; empty where there is no such event.

        The event that the log's base ends with is not in the log, but its hash is known.
        """
        found = self._connection.execute("SELECT hash FROM events WHERE seq = ?", (seq,)).fetchall()
        if found:
            return found[0][0]
        base = self.base()
        return base.event_hash if base is not None and base.seq == seq else ""

    # Replication

    def base(self) -> Base | None:
        """What the log begins after while its past is still to come; None where it begins with decision 1."""
        return read_base(self._connection)

    def base_at(self, decision_id: int) -> Base:
        """What a new log begins with that goes on after this decision. Raises `LogDamaged` without it."""
        with self._moment():
            seq, _, event_hash, decision_hash = tail_at(self._connection, decision_id)
            return Base(
                decision_id=decision_id,
                seq=seq,
                decision_hash=decision_hash,
                event_hash=event_hash,
                runs=runs(self._connection, decision_id),
            )

    def decision_hash(self, decision_id: int) -> str:
        """The chain hash of a decision, which no other history has; empty for 0, before all decisions.

        Raises `LogDamaged` where the log has no such decision.
        """
        with self._moment():
            return tail_at(self._connection, decision_id).decision_hash if decision_id else ""

    def runs(self) -> list[Run]:
        """The run map: which epoch which decisions belong to, in order."""
        with self._moment():
            return runs(self._connection, self.last_decision())

    def newest_run(self) -> Run | None:
        """The last of the runs, which tells the others: an epoch is begun after one history only."""
        with self._moment():
            run = newest_run(self._connection)
            return run and run._replace(last=self.last_decision())

    def last(self) -> tuple[tuple[int, str, str] | None, int]:
        """The epoch (n, node_id, incarnation) and the id of the newest decision; None and 0 without one."""
        with self._moment():
            last, run = self.last_decision(), newest_run(self._connection)
        return (run[:3] if run else None), last

    def entries(self, after: int, limit: int, max_bytes: int) -> list[bytes]:
        """The decisions after ``after`` with their events, for `EventLog.append_entries` of another node.

        At most ``limit``, and ``max_bytes`` in all, or else one. Raises `LogIncomplete`.
        """
        self._refuse_before_base(after, "decision_id")
        with self._moment():
            return entries_after(self._connection, after, limit, max_bytes)

    def entries_upto(self, upto: int, limit: int, max_bytes: int) -> list[bytes]:
        """The last decisions up to ``upto`` with their events, in order, for `EventLog.backfill`.

        At most ``limit``, and ``max_bytes`` in all, or else one; none where the log begins after ``upto``.
        """
        with self._moment():
            return entries_upto(self._connection, upto, limit, max_bytes)

    def branches(self) -> list[Branch]:
        """What was rejected when the log was rewound, oldest first."""
        return branches(self._connection)

    def rejected_commands(self, branch: int) -> list[str]:
        """The ids of the commands whose decisions are in a branch, in their order."""
        sql = "SELECT command_id FROM rejected_decisions WHERE branch = ? ORDER BY decision_id"
        return [row[0] for row in self._connection.execute(sql, (branch,)).fetchall()]

    def rewinds(self) -> int:
        """How often the log was rewound. What was read before a rewind may be void after it."""
        return rewinds(self._connection)

    def fork_since(self, rewinds: int) -> int | None:
        """The lowest decision that the log was rewound to since it had been so ``rewinds`` times."""
        if self.rewinds() == rewinds:
            return None
        return scalar(self._connection, "SELECT min(fork) FROM branches WHERE branch > ?", rewinds)

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
        found = self._connection.execute(f"{SELECT_EVENTS} seq = ?", (seq,)).fetchall()
        if not found:
            raise LogRewound(f"Event {seq} left the log while it was being read: read it again.")
        return recorded(found[0]).event

    def _data_version(self) -> int:
        return scalar(self._connection, "PRAGMA data_version")

    def _one(self, where: str, key: int | str) -> Committed | None:
        with self._moment():
            rows = self._connection.execute(f"{SELECT_DECISIONS} {where}", (key,)).fetchall()
            return next(committed(self._connection, rows), None)

    def _with_events(self, rows: list[Row]) -> list[Committed]:
        return list(committed(self._connection, rows))

    def _refuse_before_base(self, after: int, key: Literal["seq", "decision_id"]) -> None:
        base = self.base()
        if base is not None and after < getattr(base, key):
            raise LogIncomplete(
                f"This log begins after decision {base.decision_id} (event {base.seq}): what came before is "
                "still on its way from another node. Try again later, or ask a node that has it."
            )

    @contextmanager
    def _moment(self) -> Generator[None]:
        """All that is read within is of one moment. To be left before anything is handed out."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def _pages(
        self,
        sql: str,
        after: int,
        parameters: Sequence[int | str],
        limit: int | None,
        size: int,
        finish: Callable[[list[Row]], list[Item]],
    ) -> Iterator[list[Item]]:
        """Rows after a key, a bounded query at a time, until there are no more or ``limit`` is reached.

        Raises `LogRewound` rather than to go on in another history than it began in.
        """
        left = sys.maxsize if limit is None else limit
        began = self.rewinds()
        while left > 0:
            with self._moment():
                if self.rewinds() != began:
                    raise LogRewound("The log was rewound while it was being read: read it again.")
                rows = self._connection.execute(sql, (after, *parameters, min(size, left))).fetchall()
                items = finish(rows)
            if not rows:
                return
            yield items
            after = rows[-1][0]
            left -= len(rows)
