"""The timeline: what happened, one readable line an event, filtered."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from events.base import Event
from events.catalogue import InstancePlaced
from events.reader import LogReader
from projections.failures import failure_of
from projections.phrases import moment
from projections.words import sentence

_IDS = ("instance_id", "runner_id", "task_id", "request_id", "node_id", "model_id", "actor", "migration_id")


class Line(msgspec.Struct, frozen=True):
    """One event. ``at`` is Unix seconds."""

    seq: int
    at: float
    type: str
    subject: str
    decision_id: int
    failure: bool
    sentence: str

    def render(self) -> str:
        """The line as text, failures marked with an exclamation mark."""
        return f"{self.seq:>8}  {moment(self.at)} {'!' if self.failure else ' '} {self.sentence}"


def timeline(
    reader: LogReader,
    *,
    after: int = 0,
    upto: int | None = None,
    since: float | None = None,
    until: float | None = None,
    types: Collection[str] | None = None,
    subject: str | None = None,
    failures: bool = False,
) -> Iterator[Line]:
    """The events with ``after < seq <= upto`` and ``since < at <= until`` (Unix seconds), in order.

    ``types`` are names of event types, ``subject`` is the id of an entity that the events concern, and
    ``failures`` leaves only what went wrong. Raises `ValueError` for a type that does not exist.
    """
    after = after if since is None else max(after, reader.seq_at(since))
    upto = reader.head() if upto is None else upto
    upto = upto if until is None else min(upto, reader.seq_at(until))
    tasks = _tasks_of(reader, subject, upto) if subject is not None else frozenset[str]()
    for recorded in reader.events(after=after, upto=upto, types=types):
        event, failure = recorded.event, failure_of(recorded.event) is not None
        if failures and not failure:
            continue
        if subject is not None and event.subject not in tasks and not concerns(event, subject):
            continue
        yield Line(
            recorded.seq,
            recorded.at,
            type(event).__name__,
            event.subject,
            recorded.decision_id,
            failure,
            sentence(event),
        )


def _tasks_of(reader: LogReader, entity_id: str, upto: int) -> frozenset[str]:
    """The tasks that concern an entity: their later events don't name it."""
    created = (recorded.event for recorded in reader.events(upto=upto, types=["TaskCreated"]))
    return frozenset(event.subject for event in created if concerns(event, entity_id))


def concerns(event: Event, entity_id: str) -> bool:
    """Whether an event names an entity."""
    if any(getattr(event, field, None) == entity_id for field in _IDS):
        return True
    ranks = event.placement.ranks if isinstance(event, InstancePlaced) else []
    return any(entity_id in (rank.runner_id, rank.node_id) for rank in ranks)
