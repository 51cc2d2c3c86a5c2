"""Drafts to rows of the log: encoded, checked, numbered and chained."""

from __future__ import annotations

from events.base import Event
from events.chain import DECISION_COLUMNS, EVENT_COLUMNS, Row, link
from events.codec import COMMANDS, EVENTS, decode_facts, encode
from events.ends import Tail
from events.errors import DraftRefused, LogError
from events.record import Committed, Draft, Recorded

INSERT_EVENT = f"INSERT INTO events ({EVENT_COLUMNS}, hash) VALUES (?,?,?,?,?,?,?,?,?,?)"
INSERT_DECISION = f"INSERT INTO decisions ({DECISION_COLUMNS}, hash) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"


class EncodedDraft:
    """A draft whose command, facts and events are text, checked to be readable again.

    Raises `DraftRefused` where a value has not the type that its class declares, so that what can't be read
    never gets into a log from which nothing can be removed.
    """

    __slots__ = ("bodies", "command", "command_id", "command_type", "draft", "facts", "reason")

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.command_id = draft.command.command_id
        self.command_type = type(draft.command).__name__
        try:
            if draft.rejection is not None and draft.events:
                raise ValueError("it is rejected and has events")
            self.command = encode(draft.command)
            COMMANDS.decode(self.command_type, draft.command.VERSION, self.command)
            self.facts = encode(draft.facts)
            decode_facts(self.facts)
            self.reason = None if draft.rejection is None else encode(draft.rejection)
            self.bodies = [_body(event) for event in draft.events]
        except (ValueError, TypeError, LogError) as error:
            raise DraftRefused(
                f"{self.command_type} {self.command_id} can't be recorded: {error}.", self.command_id
            ) from error


def _body(event: Event) -> str:
    body = encode(event)
    EVENTS.decode(type(event).__name__, event.VERSION, body)
    return body


class Batch:
    """The rows of decisions that follow ``tail``; ``tail`` moves with each one added."""

    def __init__(self, tail: Tail) -> None:
        self._seq, self._decision_id, self._event_hash, self._decision_hash = tail
        self.decisions: list[Row] = []
        self.events: list[Row] = []

    @property
    def tail(self) -> Tail:
        """Where the log ends once the rows are in it."""
        return Tail(self._seq, self._decision_id, self._event_hash, self._decision_hash)

    def add(self, item: EncodedDraft) -> Committed:
        """Number and chain one decision with its events; what it will be once committed."""
        draft, command = item.draft, item.draft.command
        at = float(draft.facts.now) + 0.0  # what SQLite gives back: a float, and never -0.0
        epoch, origin, first_seq = draft.epoch, draft.origin, self._seq + 1
        self._decision_id += 1
        recorded = [
            self._add_event(event, body, epoch, origin, at)
            for event, body in zip(draft.events, item.bodies, strict=True)
        ]
        columns = (
            self._decision_id, item.command_id, item.command_type, command.VERSION, item.command,
            item.facts, draft.decider, draft.decider_version, epoch, origin, item.reason, first_seq,
            len(recorded), at,
        )  # fmt: skip
        self._decision_hash = link(self._decision_hash, columns, self._event_hash if recorded else "")
        self.decisions.append((*columns, self._decision_hash))
        return Committed(
            decision_id=self._decision_id,
            command_id=item.command_id,
            command=command,
            facts=draft.facts,
            decider=draft.decider,
            decider_version=draft.decider_version,
            epoch=epoch,
            origin=origin,
            at=at,
            rejection=draft.rejection,
            first_seq=first_seq,
            events=recorded,
        )

    def _add_event(self, event: Event, body: str, epoch: int, origin: str, at: float) -> Recorded:
        self._seq += 1
        seq, decision_id = self._seq, self._decision_id
        columns = (
            seq, epoch, decision_id, type(event).__name__, event.VERSION, event.subject, origin, at, body,
        )  # fmt: skip
        self._event_hash = link(self._event_hash, columns)
        self.events.append((*columns, self._event_hash))
        return Recorded(seq=seq, epoch=epoch, decision_id=decision_id, origin=origin, at=at, event=event)
