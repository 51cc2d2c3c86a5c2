"""Rows of the log to records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from events.chain import DECISION_COLUMNS, EVENT_COLUMNS, Row
from events.codec import COMMANDS, EVENTS, decode_cause, decode_facts
from events.drivers import Connection
from events.errors import LogDamaged, LogError, Unreadable
from events.record import Committed, Recorded

SELECT_EVENTS = f"SELECT {EVENT_COLUMNS} FROM events WHERE "
SELECT_DECISIONS = f"SELECT {DECISION_COLUMNS} FROM decisions WHERE "


def recorded(row: Row) -> Recorded:
    """The event of a row of ``EVENT_COLUMNS``. Raises `Unreadable` or `LogTooNew`, naming the seq."""
    seq, epoch, decision_id, type_name, version, _, origin, at, body = row
    try:
        event = EVENTS.decode(type_name, version, body)
    except LogError as error:
        raise type(error)(f"Event {seq}: {error}") from error
    return Recorded(seq=seq, epoch=epoch, decision_id=decision_id, origin=origin, at=at, event=event)


def committed(connection: Connection, rows: Sequence[Row]) -> Iterator[Committed]:
    """The decisions of rows of ``DECISION_COLUMNS`` that follow each other, with their events.

    Reads the events in one query. Raises `LogDamaged` where some are missing.
    """
    if not rows:
        return
    first, last = rows[0][11], rows[-1][11] + rows[-1][12]
    sql = f"{SELECT_EVENTS} seq >= ? AND seq < ? ORDER BY seq"
    events = connection.execute(sql, (first, last)).fetchall()
    if len(events) != last - first:
        raise LogDamaged(f"Events are missing between {first} and {last - 1}: restore the log from a backup.")
    for row in rows:
        start = row[11] - first
        yield committed_of(row, [recorded(event) for event in events[start : start + row[12]]])


def committed_of(row: Row, events: list[Recorded]) -> Committed:
    """The decision of a row of ``DECISION_COLUMNS``. Raises `Unreadable` or `LogTooNew`, naming it."""
    (decision_id, command_id, command_type, command_version, command, facts, decider, decider_version,
     epoch, origin, reason, first_seq, _, at) = row  # fmt: skip
    try:
        decoded = COMMANDS.decode(command_type, command_version, command)
        known, rejection = decode_facts(facts), None if reason is None else decode_cause(reason)
    except LogError as error:
        raise type(error)(f"Decision {decision_id}: {error}") from error
    except msgspec.MsgspecError as error:
        raise Unreadable(f"Decision {decision_id}: its facts or its reason can't be read: {error}") from error
    return Committed(
        decision_id=decision_id,
        command_id=command_id,
        command=decoded,
        facts=known,
        decider=decider,
        decider_version=decider_version,
        epoch=epoch,
        origin=origin,
        at=at,
        rejection=rejection,
        first_seq=first_seq,
        events=events,
    )
