"""The records of the log: a decision to append, and decisions and events as they were recorded."""

from __future__ import annotations

import msgspec

from events.base import Command, Event
from events.catalogue import EpochStarted
from events.commands import Facts
from events.values import Cause


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decision to append: what was asked, what was known, and what follows.

    ``rejection`` is the reason of a refusal; a refused command has no events.
    """

    command: Command
    facts: Facts
    decider: str
    decider_version: int
    events: list[Event]
    rejection: Cause | None = None

    @property
    def epoch(self) -> int:
        """The term that the decision belongs to: its own where it starts one."""
        for event in self.events:
            if isinstance(event, EpochStarted):
                return event.epoch
        return self.facts.epoch

    @property
    def origin(self) -> str:
        """The node that reported, or else the node that decided."""
        return getattr(self.command, "origin", self.facts.node_id)

    @property
    def observation(self) -> bool:
        """True where a power cut may take the decision, because it only holds readings."""
        return bool(self.events) and all(event.OBSERVATION for event in self.events)


class Recorded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event in the log. ``seq`` counts from 1 without gaps; ``at`` is Unix seconds."""

    seq: int
    epoch: int
    decision_id: int
    origin: str
    at: float
    event: Event


class Committed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decision in the log. ``decision_id`` counts from 1 without gaps; ``at`` is Unix seconds.

    ``first_seq`` is the seq of its first event; where it has none, the seq that the next event got.
    """

    decision_id: int
    command_id: str
    command: Command
    facts: Facts
    decider: str
    decider_version: int
    epoch: int
    origin: str
    at: float
    rejection: Cause | None
    first_seq: int
    events: list[Recorded]
