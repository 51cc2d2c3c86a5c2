"""`why`: how a thing came to be as it is, as a chain of sentences from the log, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from events import catalogue as ev
from events import commands as cmd
from events.base import Event, Report
from events.catalogue import EVENT_TYPES
from events.reader import LogReader
from events.record import Committed, Recorded
from events.status import Failed, Loading
from projections.command_words import asked
from projections.failures import failure_of
from projections.phrases import moment, reason
from projections.timeline import concerns
from projections.words import runner_status, sentence, verdict


class Link(msgspec.Struct, frozen=True):
    """One step of a story: what happened when (Unix seconds), because of what, with its evidence.

    ``seq`` is 0 for a decision that made no event.
    """

    seq: int
    at: float
    decision_id: int
    failure: bool
    sentence: str
    because: str
    details: list[str]


class Story(msgspec.Struct, frozen=True):
    """The steps that concern ``id``, in order. ``kind`` is what it is, such as ``instance``."""

    id: str
    kind: str
    links: list[Link]


class Unknown(Exception):
    """The log has nothing on this id."""


def why(reader: LogReader, entity_id: str) -> Story:
    """The story of an instance, runner, task, request, node, model (with its downloads) or actor, by its id.

    A number is that of a decision, and ``#`` with a number is that of an event, such as a failure: both give
    what was decided together, after the story of what it was about up to then. Raises `Unknown`.
    """
    number = entity_id.removeprefix("#")
    if number.isdecimal() and len(number) < 19:  # SQLite's numbers end there
        by_seq = entity_id.startswith("#")
        return _decision_story(reader, entity_id, int(number), by_seq=by_seq)
    found = _Collector(reader).collect(entity_id)
    if not found:
        raise Unknown(
            f"The log has nothing on {entity_id!r}. Give the id of an instance, runner, task, request, node, "
            "model or actor, the number of a decision, or # and the number of an event."
        )
    return Story(entity_id, _kind(entity_id, found), list(steps(reader, found)))


def render_text(story: Story) -> str:
    """The story as text for people: a paragraph a step."""
    lines = [f"{story.kind.capitalize()} {story.id}:"]
    told = ""
    shown: list[str] = []
    for link in story.links:
        lines.append(f"{moment(link.at)} {'!' if link.failure else ' '} {link.sentence}  {_position(link)}")
        if link.because != told:
            lines.append(f"{'':27}{link.because}")
        if link.details != shown:
            lines += [f"{'':29}{detail}" for detail in link.details]
        told, shown = link.because, link.details
    return "\n".join(lines)


def _position(link: Link) -> str:
    return f"[#{link.seq}]" if link.seq else f"[decision {link.decision_id}]"


_OF_NODES = (cmd.ReportNodeStarted, cmd.ReportNodeStopping, cmd.ReportNodeLost)

_TELLING = [name for name, cls in EVENT_TYPES.items() if not cls.OBSERVATION]
"""Types of events that explain something. A long log has far more readings, such as load windows."""

_BEFORE = 20
"""Steps that are told of what led up to a decision; more would bury it."""


class _Collector:
    """Gathers the events that belong to a story."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._family: set[str] = set()
        """Ids that the story is about, itself and its runners or tasks."""

    def collect(self, entity_id: str) -> dict[int, Recorded]:
        """The events of an entity and those that explain them, by seq and in its order."""
        own = list(self._reader.events(subject=entity_id, types=_TELLING))
        if not own:
            own = [*self._placements_with(entity_id), *self._tasks_of(entity_id)]
        found = {recorded.seq: recorded for recorded in own}
        self._family |= {entity_id, *(each.event.subject for each in own)}
        for recorded in own:
            for more in self._related(recorded, entity_id):
                found.setdefault(more.seq, more)
        return {seq: found[seq] for seq in sorted(found) if not _quiet(found[seq].event)}

    def _related(self, recorded: Recorded, entity_id: str) -> Iterator[Recorded]:
        event = recorded.event
        if failure_of(event) is not None:
            yield from self._decided_with(recorded)
        match event:
            case ev.InstancePlaced() if event.instance_id == entity_id:
                for rank in event.placement.ranks:
                    self._family.add(rank.runner_id)
                    yield from self._events_of_runner(rank.runner_id)
            case ev.RunnerStatusChanged(instance_id=instance_id):
                self._family.add(instance_id)
                yield from self._placement_of(instance_id, event.runner_id)
                if isinstance(event.status, Failed):
                    yield from self._next_placement(instance_id, recorded.seq)
            case ev.TaskCreated():
                self._family |= {event.runner_id, event.instance_id}
                yield from self._placement_of(event.instance_id, event.runner_id)
                yield from self._end_of_tasks(event.task_id)
            case ev.ModelDescribed():
                yield from self._instances_of(event.model_id)
            case ev.NodeStarted() | ev.NodeStopped():
                yield from self._decided_with(recorded)
            case _:
                pass

    def _decided_with(self, recorded: Recorded) -> list[Recorded]:
        """What was decided together with an event; of all that a lost node takes along, only the family's."""
        decision = self._reader.decision(recorded.decision_id)
        if decision is None:
            return []
        command = decision.command
        if not isinstance(command, _OF_NODES):
            return decision.events
        node_id = command.node_id if isinstance(command, cmd.ReportNodeLost) else command.origin
        if node_id in self._family:
            return decision.events
        return [each for each in decision.events if self._in_family(each.event)]

    def _in_family(self, event: Event) -> bool:
        return isinstance(event, ev.NodeStopped) or any(concerns(event, name) for name in self._family)

    def _events_of_runner(self, runner_id: str) -> Iterator[Recorded]:
        for recorded in self._reader.events(subject=runner_id):
            yield recorded
            if failure_of(recorded.event) is not None:
                yield from self._decided_with(recorded)

    def _placement_of(self, instance_id: str, runner_id: str) -> Iterator[Recorded]:
        """The placement that wanted a runner, and when it was ready."""
        types = ["InstancePlaced", "InstanceReady"]
        recorded_events = list(self._reader.events(subject=instance_id, types=types))
        for index, recorded in enumerate(recorded_events):
            event = recorded.event
            if isinstance(event, ev.InstancePlaced) and _has_runner(event, runner_id):
                yield recorded
                after = recorded_events[index + 1 : index + 2]
                yield from (each for each in after if isinstance(each.event, ev.InstanceReady))

    def _next_placement(self, instance_id: str, after: int) -> Iterator[Recorded]:
        placed = self._reader.events(after=after, subject=instance_id, types=["InstancePlaced"], limit=1)
        yield from placed

    def _placements_with(self, runner_id: str) -> list[Recorded]:
        placed = self._reader.events(types=["InstancePlaced"])
        return [each for each in placed if _has_runner(each.event, runner_id)]

    def _tasks_of(self, request_id: str) -> list[Recorded]:
        created = self._reader.events(types=["TaskCreated"])
        return [each for each in created if getattr(each.event, "request_id", "") == request_id]

    def _end_of_tasks(self, task_id: str) -> Iterator[Recorded]:
        for recorded in self._reader.events(subject=task_id):
            yield recorded
            if isinstance(recorded.event, ev.TaskFailed):
                yield from self._decided_with(recorded)

    def _instances_of(self, model_id: str) -> Iterator[Recorded]:
        requested = self._reader.events(types=["InstanceRequested"])
        return (each for each in requested if getattr(each.event, "model_id", "") == model_id)


def _has_runner(event: Event, runner_id: str) -> bool:
    ranks = event.placement.ranks if isinstance(event, ev.InstancePlaced) else []
    return any(rank.runner_id == runner_id for rank in ranks)


def _quiet(event: Event) -> bool:
    """True for readings and progress, which explain nothing."""
    match event:
        case ev.RunnerStatusChanged(status=Loading(layers=layers)):
            return layers > 0
        case _:
            return event.OBSERVATION


def _kind(entity_id: str, found: dict[int, Recorded]) -> str:
    for recorded in found.values():
        for kind in ("instance", "runner", "task", "request", "model", "actor", "node"):
            field = "actor" if kind == "actor" else f"{kind}_id"
            if getattr(recorded.event, field, None) == entity_id:
                return kind
    return "runner"


def _decision_story(reader: LogReader, name: str, number: int, *, by_seq: bool) -> Story:
    decision = reader.decision_at(number) if by_seq else reader.decision(number)
    if decision is None:
        last = f"{reader.head()} events" if by_seq else f"{reader.last_decision()} decisions"
        raise Unknown(f"There is no {'event' if by_seq else 'decision'} {number}: the log has {last}.")
    found: dict[int, Recorded] = {recorded.seq: recorded for recorded in decision.events}
    for subject in dict.fromkeys(recorded.event.subject for recorded in decision.events):
        story = _Collector(reader).collect(subject).items()
        found |= [(seq, each) for seq, each in story if seq < decision.first_seq]
    links = list(steps(reader, dict(sorted(found.items())[-_BEFORE - len(decision.events) :])))
    if not decision.events:
        links.append(_eventless(decision))
    return Story(name, "event" if by_seq else "decision", links)


def _eventless(decision: Committed) -> Link:
    cause = decision.rejection
    outcome = f"This was rejected: {reason(cause)}" if cause else "There was nothing to do"
    details = [f"{name}: {value}" for name, value in cause.detail.items()] if cause else []
    because = f"because {asked(decision.command)} (decision {decision.decision_id})"
    return Link(0, decision.at, decision.decision_id, cause is not None, outcome, because, details)


def steps(
    reader: LogReader, found: dict[int, Recorded], details: Callable[[Event], list[str]] | None = None
) -> Iterator[Link]:
    """Events, by seq and in their order, as steps of a story; ``details`` gives the evidence of each."""
    places: dict[str, str] = {}
    waiting: dict[str, int] = {}
    decision: Committed | None = None
    for recorded in found.values():
        event = recorded.event
        if decision is None or decision.decision_id != recorded.decision_id:
            decision = reader.decision(recorded.decision_id)
        assert decision is not None  # the log has the decision of each of its events
        if isinstance(event, ev.InstancePlaced):
            for rank in event.placement.ranks:
                place = f"rank {rank.rank} of {event.instance_id} on {rank.node_id}"
                places[rank.runner_id] = f"{rank.runner_id} ({place})"
        yield Link(
            recorded.seq,
            recorded.at,
            recorded.decision_id,
            failure_of(event) is not None,
            _told(recorded, places),
            _because(decision, recorded, places, waiting),
            (details or _details)(event),
        )
        if isinstance(event, ev.InstanceSetBack | ev.InstanceRetried):
            waiting[event.instance_id] = recorded.seq


def _told(recorded: Recorded, places: dict[str, str]) -> str:
    event = recorded.event
    match event:
        case ev.RunnerStatusChanged(runner_id=runner_id, instance_id=instance_id):
            return runner_status(places.get(runner_id, f"{runner_id} of {instance_id}"), event.status)
        case ev.InstanceSetBack():
            wait = max(0.0, event.retry_at - recorded.at)
            when = f"to be placed again after {wait:.1f} s" if wait else "to be placed again at once"
            return f"{event.instance_id} was set back, attempt {event.attempt}, {when}: {reason(event.cause)}"
        case ev.DownloadFailed() if event.retry_at:
            wait = max(0.0, event.retry_at - recorded.at)
            failed = f"{event.node_id} failed to fetch {event.model_id}, attempt {event.attempt}"
            return f"{failed}, to be tried again after {wait:.1f} s: {reason(event.cause)}"
        case _:
            return sentence(event)


def _because(decision: Committed, recorded: Recorded, places: dict[str, str], waiting: dict[str, int]) -> str:
    root = _root(decision)
    number = f"(decision {decision.decision_id})"
    if isinstance(decision.command, Report):
        if recorded.seq == root.seq:
            return f"as {decision.origin} reported {number}"
        return f"because {_told(root, places)} {number}"
    words = f"because {asked(decision.command)}"
    if isinstance(decision.command, cmd.ReconcileInstance) and decision.command.instance_id in waiting:
        words += f", see #{waiting[decision.command.instance_id]}"
    return f"{words} {number}"


def _root(decision: Committed) -> Recorded:
    """The event of a decision that the others follow from: a node's end, or else the first."""
    ends = (each for each in decision.events if isinstance(each.event, ev.NodeStopped))
    return next(ends, decision.events[0])


def _details(event: Event) -> list[str]:
    if isinstance(event, ev.InstancePlaced):
        return [verdict(candidate) for candidate in event.candidates]
    failure = failure_of(event)
    return failure.detail if failure is not None else []
