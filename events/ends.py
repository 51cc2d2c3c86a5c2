"""Where a log ends, and where it begins: with decision 1, or for a while after a base."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from events.catalogue import EpochStarted
from events.codec import EVENTS, encode
from events.drivers import Connection
from events.errors import LogDamaged


class Tail(NamedTuple):
    """Where a log ends: its newest event and decision, 0 where none, and their hashes, empty where none."""

    seq: int
    decision_id: int
    event_hash: str
    decision_hash: str


EMPTY = Tail(0, 0, "", "")


class Run(NamedTuple):
    """The decisions ``first`` to ``last`` of one epoch: term ``n``, of a node in one run of its process."""

    n: int
    node_id: str
    incarnation: str
    first: int
    last: int


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that a log begins after, with the seq and the hashes there and the runs up to it.

    A node that joins a long log takes a base and the state there, is ready, and fills the past in later.
    """

    decision_id: int
    seq: int
    decision_hash: str
    event_hash: str
    runs: list[Run]

    @property
    def tail(self) -> Tail:
        """What the first decision after the base follows."""
        return Tail(self.seq, self.decision_id, self.event_hash, self.decision_hash)


_decode_base = msgspec.json.Decoder(Base).decode


def read_base(connection: Connection) -> Base | None:
    """The base that the log still begins after, None where it has its whole past."""
    found = connection.execute("SELECT value FROM meta WHERE name = 'base'").fetchall()
    return _decode_base(found[0][0]) if found else None


def write_base(connection: Connection, base: Base | None) -> None:
    """Set where the log begins. Within a transaction."""
    connection.execute("DELETE FROM meta WHERE name = 'base'")
    if base is not None and base.tail != EMPTY:
        connection.execute("INSERT INTO meta VALUES ('base', ?)", (encode(base),))


def beginning(connection: Connection) -> Tail:
    """What the first decision in the log follows."""
    base = read_base(connection)
    return EMPTY if base is None else base.tail


def newest(connection: Connection, path: Path) -> Tail:
    """Where the log ends. Raises `LogDamaged` where its last decision and its last event don't agree."""
    start = beginning(connection)
    found = connection.execute("SELECT max(decision_id) FROM decisions").fetchall()
    tail = start if found[0][0] is None else tail_at(connection, found[0][0])
    event = connection.execute("SELECT max(seq) FROM events").fetchall()
    last_seq = start.seq if event[0][0] is None else event[0][0]
    if tail.seq != last_seq:
        raise LogDamaged(
            f"{path}: decision {tail.decision_id} ends at event {tail.seq} but the last event is {last_seq}. "
            "Restore the log from a backup."
        )
    return tail


def tail_at(connection: Connection, decision_id: int) -> Tail:
    """Where the log ended right after a decision that it has, or at its beginning.

    Raises `LogDamaged` where it has neither the decision nor its last event.
    """
    start = beginning(connection)
    if decision_id == start.decision_id:
        return start
    sql = "SELECT hash, first_seq + n_events - 1 FROM decisions WHERE decision_id = ?"
    decision = connection.execute(sql, (decision_id,)).fetchall()
    if not decision:
        raise LogDamaged(f"The log has no decision {decision_id}.")
    decision_hash, seq = decision[0]
    if seq == start.seq:
        return Tail(seq, decision_id, start.event_hash, decision_hash)
    event = connection.execute("SELECT hash FROM events WHERE seq = ?", (seq,)).fetchall()
    if not event:
        raise LogDamaged(f"The log has no event {seq}, which ends decision {decision_id}.")
    return Tail(seq, decision_id, event[0][0], decision_hash)


def moved_down(base: Base, to: Tail) -> Base | None:
    """The base once the decisions after ``to`` are in the log; None where those are all."""
    if to == EMPTY:
        return None
    return Base(
        decision_id=to.decision_id,
        seq=to.seq,
        decision_hash=to.decision_hash,
        event_hash=to.event_hash,
        runs=_clipped(base.runs, to.decision_id),
    )


def epoch_at(connection: Connection, decision_id: int) -> int:
    """The epoch of a decision that the log has, or of its base; 0 at the beginning of all."""
    found = connection.execute("SELECT epoch FROM decisions WHERE decision_id = ?", (decision_id,)).fetchall()
    if found:
        return found[0][0]
    base = read_base(connection)
    return base.runs[-1].n if base is not None and base.runs else 0


_STARTS = """
SELECT decisions.decision_id, version, body
FROM decisions JOIN events ON events.seq = first_seq AND events.decision_id = decisions.decision_id
WHERE command_type = 'StartEpoch' AND reason IS NULL AND decisions.decision_id <= ? AND type = 'EpochStarted'
ORDER BY decisions.decision_id
"""


def runs(connection: Connection, upto: int) -> list[Run]:
    """The epochs that decisions up to ``upto`` belong to, in order. Decisions before the first have none."""
    base = read_base(connection)
    older = [] if base is None else base.runs
    found = [_started(*row) for row in connection.execute(_STARTS, (upto,)).fetchall()]
    return _clipped([*older, *found], upto)


def newest_run(connection: Connection) -> Run | None:
    """The last of all runs, which ends where the log does."""
    found = connection.execute(f"{_STARTS} DESC LIMIT 1", (sys.maxsize,)).fetchall()
    if found:
        return _started(*found[0])
    base = read_base(connection)
    return base.runs[-1] if base is not None and base.runs else None


def _clipped(found: list[Run], upto: int) -> list[Run]:
    """The runs up to a decision, each ending where the next one begins."""
    found = [run for run in found if run.first <= upto]
    ends = [run.first - 1 for run in found[1:]]
    return [run._replace(last=last) for run, last in zip(found, [*ends, upto], strict=False)]


def _started(first: int, version: int, body: str) -> Run:
    event = cast(EpochStarted, EVENTS.decode(EpochStarted.__name__, version, body))
    return Run(event.epoch, event.node_id, event.incarnation, first, first)
