"""Points of a log as people name them: an event's number, a time, or the end."""

from __future__ import annotations

from datetime import UTC, datetime

from api.cli.errors import CliError
from events.reader import LogReader

HEAD = "head"
_DIGITS = 18
"""Of the numbers that SQLite has; Python reads none of thousands of digits at all."""
HOW = "number of an event, a time in ISO form (UTC unless it names a zone), or 'head'"


def seq_of(reader: LogReader, position: str) -> int:
    """The seq that a position names: for a time, that of the last event which is not later.

    Raises `CliError` where it is none, or lies beyond the log.
    """
    head = reader.head()
    if position == HEAD:
        return head
    if position.isdecimal():
        if len(position) > _DIGITS or int(position) > head:
            raise CliError(f"There is no event {position}: the log ends with event {head}.")
        return int(position)
    return reader.seq_at(time_of(position))


def time_of(text: str) -> float:
    """A time in ISO form as Unix seconds. Raises `CliError`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CliError(f"{text!r} is not a {HOW}, such as 120 or 2026-05-01T12:30:00Z.") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
