"""``/events`` and ``/decisions``: the record itself, in pages, or followed as it grows."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from api.answers import encode
from api.closing import Closing, unless_closing
from api.errors import invalid, not_found
from api.log_access import LOG
from api.routes import Call
from api.sse import EventStream, event
from events.catalogue import EVENT_TYPES, ClusterEvent
from events.commands import ClusterCommand, Facts
from events.reader import LogReader
from events.record import Committed, Recorded
from events.values import Cause

_TAIL_BATCH = 500

Position = Annotated[int, Meta(ge=0, le=2**62)]
PageSize = Annotated[int, Meta(ge=1, le=1000)]


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the log. ``seq`` counts from 1 without gaps; ``at`` is Unix seconds."""

    seq: int
    epoch: int
    decision_id: int
    origin: str
    at: float
    event: ClusterEvent


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: what was asked, what was known, and what followed; or ``rejection``, why nothing did."""

    decision_id: int
    command_id: str
    command: ClusterCommand
    facts: Facts
    decider: str
    decider_version: int
    epoch: int
    origin: str
    at: float
    rejection: Cause | None
    first_seq: int
    events: list[EventView]


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which events. ``type`` may name several, with commas; ``subject`` is the id that they are about."""

    after: Position | None = None
    """Seq of the last event already seen; without it, from the first."""
    limit: PageSize = 100
    """Of a page; a stream has no end."""
    type: str = ""
    subject: str = ""
    follow: bool = False
    """Server-sent events, as with ``Accept: text/event-stream``."""


class DecisionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which decisions. ``after`` is the id of the last one already seen."""

    after: Position = 0
    limit: PageSize = 100


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events in order. ``after`` asks for the next page; ``head`` is the seq of the newest event of all."""

    events: list[EventView]
    after: int
    head: int


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """In a stream, as ``rewound``: the events after this seq are void; what comes next takes their place."""

    after: int


class DecisionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions in order. ``after`` asks for the next page; ``head`` is the newest decision's id."""

    decisions: list[DecisionView]
    after: int
    head: int


async def list_events(call: Call[None, EventQuery]) -> EventPage | web.StreamResponse:
    """List events, or follow them.

    As an event stream it sends what there is and then what comes, and resumes after ``Last-Event-ID``
    without a gap or a repetition.
    """
    query = call.query
    wanted = Filter.of(query)
    if call.wants_events(follow=query.follow):
        return await _follow(call, wanted)
    return await call.request.app[LOG].read(lambda log: _page(log, wanted, query.after or 0, query.limit))


async def list_decisions(call: Call[None, DecisionQuery]) -> DecisionPage:
    """List decisions, the rejected ones too."""
    query = call.query

    def read(log: LogReader) -> DecisionPage:
        head = log.last_decision()
        found = [decision_view(c) for c in log.decisions(query.after, head, query.limit)]
        return DecisionPage(decisions=found, after=found[-1].decision_id if found else query.after, head=head)

    return await call.request.app[LOG].read(read)


async def get_decision(call: Call[None, None]) -> DecisionView:
    """Show one decision, by its number or by the id of its command."""
    name = call.part("decision_id")

    def read(log: LogReader) -> Committed | None:
        by_number = name.isascii() and name.isdigit() and len(name) <= 18
        return log.decision(int(name)) if by_number else log.decision_of(name)

    found = await call.request.app[LOG].read(read)
    if found is None:
        message = f"There is no decision {name!r}; GET /decisions lists them."
        raise not_found(message, code="decision_not_found")
    return decision_view(found)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Types and subject to read; None for all."""

    types: list[str] | None
    subject: str | None

    @classmethod
    def of(cls, query: EventQuery) -> Filter:
        """The filter that a query asks for. Raises `ApiError` (400) for a type that no event has."""
        types = [name.strip() for name in query.type.split(",") if name.strip()]
        unknown = [name for name in types if name not in EVENT_TYPES]
        if unknown:
            known = ", ".join(EVENT_TYPES)
            raise invalid(f"No event is called {', '.join(unknown)}. Events: {known}.", param="type")
        return cls(types=types or None, subject=query.subject or None)


def event_view(recorded: Recorded) -> EventView:
    """An event as the API shows it."""
    return EventView(
        seq=recorded.seq,
        epoch=recorded.epoch,
        decision_id=recorded.decision_id,
        origin=recorded.origin,
        at=recorded.at,
        event=recorded.event,  # pyright: ignore[reportArgumentType]  # the log holds no other ones
    )


def decision_view(committed: Committed) -> DecisionView:
    """A decision as the API shows it."""
    return DecisionView(
        decision_id=committed.decision_id,
        command_id=committed.command_id,
        command=committed.command,  # pyright: ignore[reportArgumentType]  # the log holds no other ones
        facts=committed.facts,
        decider=committed.decider,
        decider_version=committed.decider_version,
        epoch=committed.epoch,
        origin=committed.origin,
        at=committed.at,
        rejection=committed.rejection,
        first_seq=committed.first_seq,
        events=[event_view(recorded) for recorded in committed.events],
    )


def _page(log: LogReader, wanted: Filter, after: int, limit: int) -> EventPage:
    """Reads up to the head as it is first: what comes meanwhile is the next page's."""
    head = log.head()
    found = [event_view(r) for r in log.events(after, head, limit, wanted.types, wanted.subject)]
    last = found[-1].seq if len(found) == limit else max(after, head)
    return EventPage(events=found, after=last, head=head)


async def _follow(call: Call[None, EventQuery], wanted: Filter) -> web.StreamResponse:
    log = call.request.app[LOG]
    after, rewinds = _start(call)
    async with call.gateway.tail() as more:
        rewinds, fork, page = await log.read(partial(next_page, wanted=wanted, after=after, rewinds=rewinds))
        async with EventStream(call.request, patient=True) as stream:
            await stream.send(b": " + str(after).encode() + b"\n\n")
            while True:
                if fork is not None:
                    told = encode(Rewound(after=fork))
                    await stream.send(event(told, name="rewound", event_id=_id(fork, rewinds)))
                if page.events:
                    await stream.send(b"".join(_event(view, rewinds) for view in page.events))
                after = page.after
                if after >= page.head:
                    try:
                        await unless_closing(call.request.app, more(after))
                    except Closing:
                        break
                rewinds, fork, page = await log.read(
                    partial(next_page, wanted=wanted, after=after, rewinds=rewinds)
                )
        return stream.response


def next_page(
    log: LogReader, wanted: Filter, after: int, rewinds: int | None = None
) -> tuple[int, int | None, EventPage]:
    """The next page of a stream, with how often the log was rewound.

    Where it was since it had been so ``rewinds`` times, and that took events up to ``after``, the page begins
    at the fork, whose seq comes second.
    """
    now = log.rewinds()
    decision_id = None if rewinds is None else log.fork_since(rewinds)
    fork = None if decision_id is None else log.base_at(decision_id).seq
    if fork is None or fork >= after:
        return now, None, _page(log, wanted, after, _TAIL_BATCH)
    return now, fork, _page(log, wanted, fork, _TAIL_BATCH)


def _start(call: Call[None, EventQuery]) -> tuple[int, int | None]:
    """The seq after which to begin, and how often the log had been rewound when the client read it."""
    given = call.request.headers.get("Last-Event-ID", "").strip()
    if not given:
        return call.query.after or 0, None
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", given):
        raise invalid("Last-Event-ID must be the id of an event of a stream.", param="Last-Event-ID")
    seq, _, rewinds = given.partition(".")
    return int(seq), int(rewinds or 0)


def _id(seq: int, rewinds: int) -> str:
    """A seq; and how often the log had been rewound, where it had, so that it can't be taken for another."""
    return f"{seq}.{rewinds}" if rewinds else str(seq)


def _event(view: EventView, rewinds: int) -> bytes:
    return event(encode(view), name=type(view.event).__name__, event_id=_id(view.seq, rewinds))
