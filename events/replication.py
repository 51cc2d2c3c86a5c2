"""Decisions on their way from one node's log to another's: as they are stored, and checked when they arrive.

An entry is the MessagePack array of a decision's columns, its hash and those that it follows, and of each
event what the decision doesn't say already. The rest (seq, epoch, origin, time, the events' own hashes)
follows from these, and the decision's hash covers it: an entry that was changed on its way is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from events.chain import DECISION_COLUMNS, EVENT_COLUMNS, Row, link
from events.drivers import Connection
from events.ends import Tail, beginning, tail_at
from events.errors import EntriesRefused, LogDamaged
from events.from_rows import committed_of, recorded
from events.record import Committed


class DecisionColumns(NamedTuple):
    """What `events.chain.DECISION_COLUMNS` names."""

    decision_id: int
    command_id: str
    command_type: str
    command_version: int
    command: str
    facts: str
    decider: str
    decider_version: int
    epoch: int
    origin: str
    reason: str | None
    first_seq: int
    n_events: int
    at: float


EventPart = tuple[str, int, str, str]
"""type, version, subject, body."""

_PAGE = 50
"""Decisions that are read at a time: those of large models' load windows have 100 KB and more."""

_SELECT_DECISIONS = (
    f"SELECT {DECISION_COLUMNS}, hash FROM decisions WHERE decision_id > ? ORDER BY decision_id LIMIT ?"
)
_SELECT_EVENTS = f"SELECT {EVENT_COLUMNS}, hash FROM events WHERE seq >= ? AND seq < ? ORDER BY seq"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A decision with its events, as stored.

    ``before`` and ``event_before`` are the hashes of the decision and of the event that it follows.
    """

    before: str
    event_before: str
    decision: DecisionColumns
    hash: str
    events: list[EventPart]

    @property
    def start(self) -> Tail:
        """Where a log must end that this entry can follow."""
        return Tail(
            self.decision.first_seq - 1, self.decision.decision_id - 1, self.event_before, self.before
        )

    def rows(self) -> tuple[Row, list[Row]]:
        """The decision's row and its events' rows, each with its hash.

        Raises `EntriesRefused` where they don't give the hash that the entry has.
        """
        it = self.decision
        events: list[Row] = []
        event_hash = self.event_before
        for seq, (type_name, version, subject, body) in enumerate(self.events, it.first_seq):
            columns = (seq, it.epoch, it.decision_id, type_name, version, subject, it.origin, it.at, body)
            event_hash = link(event_hash, columns)
            events.append((*columns, event_hash))
        whole = link(self.before, it, event_hash if events else "") == self.hash
        if not whole or it.n_events != len(events):
            raise EntriesRefused(
                f"Decision {it.decision_id} was changed on its way: its hash does not match it."
            )
        return (*it, self.hash), events


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


def encode_entry(after: Tail, decision: Sequence[object], own_hash: str, events: Sequence[Row]) -> bytes:
    """The entry of a decision after ``after``, of its columns, its hash and its events' rows."""
    parts = [(event[3], event[4], event[5], event[8]) for event in events]
    return _encode((after.decision_hash, after.event_hash, decision, own_hash, parts))


class Place(NamedTuple):
    """A decision's id, and its chain hash, which it has in no other history."""

    decision_id: int
    hash: str


def place_of(data: bytes) -> Place:
    """Where an entry belongs. Raises `EntriesRefused` for other bytes."""
    entry = decode_entry(data)
    return Place(entry.decision.decision_id, entry.hash)


class Arrived:
    """Entries checked to follow a log's ``tail``: their rows, and what they say.

    ``epoch`` is that of the tail's decision: later ones never fall below it.
    """

    def __init__(self, tail: Tail, epoch: int) -> None:
        self.tail = tail
        self.decisions: list[Row] = []
        self.events: list[Row] = []
        self.committed: list[Committed] = []
        self._epoch = epoch

    def add(self, data: bytes) -> None:
        """Take one more entry.

        Raises `EntriesRefused` where it doesn't follow, was changed, or its epoch falls; `LogTooNew` or
        `Unreadable`, naming what it is about, where this version can't read it.
        """
        entry = decode_entry(data)
        if entry.start != self.tail:
            raise EntriesRefused(_misfit(entry, self.tail))
        decision_id, epoch = entry.decision.decision_id, entry.decision.epoch
        if epoch < self._epoch:
            raise EntriesRefused(f"Decision {decision_id} is of epoch {epoch}, after one of {self._epoch}.")
        decision, events = entry.rows()
        self.committed.append(committed_of(entry.decision, [recorded(event[:-1]) for event in events]))
        self.decisions.append(decision)
        self.events += events
        event_hash = events[-1][-1] if events else self.tail.event_hash
        self.tail = Tail(self.tail.seq + len(events), decision_id, event_hash, entry.hash)
        self._epoch = epoch

    @property
    def observations(self) -> bool:
        """True where a power cut may take all of it, see `events.record.Draft.observation`."""
        return all(
            each.events and all(one.event.OBSERVATION for one in each.events) for each in self.committed
        )


def decode_entry(data: bytes) -> Entry:
    """The entry of these bytes. Raises `EntriesRefused` where they are none."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise EntriesRefused(f"{len(data)} bytes that came as a decision are none: {error}") from error


def _misfit(entry: Entry, tail: Tail) -> str:
    decision_id, due = entry.decision.decision_id, tail.decision_id + 1
    if decision_id != due:
        return f"Decision {decision_id} came where decision {due} is due."
    return f"Decision {decision_id} follows another history than this log's, which ends at {tail}."


def entries_after(connection: Connection, after: int, limit: int, max_bytes: int) -> list[bytes]:
    """The entries of the decisions after ``after``: at most ``limit``, and ``max_bytes`` or else one."""
    taken: list[bytes] = []
    size = 0
    while len(taken) < limit and (
        page := _page(connection, after + len(taken), min(_PAGE, limit - len(taken)))
    ):
        for data in page:
            size += len(data)
            if taken and size > max_bytes:
                return taken
            taken.append(data)
    return taken


def entries_upto(connection: Connection, upto: int, limit: int, max_bytes: int) -> list[bytes]:
    """The last entries up to decision ``upto``, in order: at most ``limit`` and ``max_bytes``, or one."""
    first = max(beginning(connection).decision_id, upto - limit)
    taken: list[bytes] = []
    size = 0
    while upto > first:
        after = max(first, upto - _PAGE)
        for data in reversed(_page(connection, after, upto - after)):
            size += len(data)
            if taken and size > max_bytes:
                return taken[::-1]
            taken.append(data)
        upto = after
    return taken[::-1]


def _page(connection: Connection, after: int, limit: int) -> list[bytes]:
    decisions = connection.execute(_SELECT_DECISIONS, (after, limit)).fetchall()
    if not decisions:
        return []
    tail = tail_at(connection, after)
    end = decisions[-1][11] + decisions[-1][12]
    events = iter(connection.execute(_SELECT_EVENTS, (tail.seq + 1, end)).fetchall())
    page: list[bytes] = []
    for *columns, own_hash in decisions:
        own = list(islice(events, columns[12]))
        if len(own) != columns[12]:
            raise LogDamaged(f"Events of decision {columns[0]} are missing: restore the log from a backup.")
        page.append(encode_entry(tail, columns, own_hash, own))
        event_hash = own[-1][-1] if own else tail.event_hash
        tail = Tail(tail.seq + len(own), columns[0], event_hash, own_hash)
    return page
