"""Deciding a recorded command again: the common core of `verify` and `what_if`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

import msgspec

from events.base import Command, Event
from events.codec import encode
from events.commands import Facts
from events.reader import LogReader
from events.record import Committed
from events.values import Cause
from projections.command_words import asked
from projections.evolve import apply
from projections.replay import state_at
from projections.state import ClusterState
from projections.words import sentence

Decide = Callable[[ClusterState, Command, Facts], list[Event]]
"""A decider. It refuses a command by raising an exception whose ``cause`` is a `Cause`."""


_VALUES = 3
"""Differing values that a `Difference` shows."""


class Outcome(msgspec.Struct, frozen=True):
    """What was or would be decided: events, or a rejection, or (``error``) the decider broke."""

    events: list[Event]
    rejection: Cause | None = None
    error: str = ""

    def encoded(self) -> str:
        """The outcome as bytes of the log have it: two outcomes are the same where these are."""
        return self.error or encode((self.events, self.rejection))

    def plain(self) -> Any:
        """The outcome as JSON-able values."""
        return msgspec.to_builtins({"events": self.events, "rejection": self.rejection, "error": self.error})

    def sentences(self) -> list[str]:
        """The outcome in words."""
        if self.error:
            return [f"the decider broke: {self.error}"]
        if self.rejection is not None:
            return [f"rejected: {self.rejection.message}"]
        return [sentence(event) for event in self.events] or ["nothing to do"]


class Difference(msgspec.Struct, frozen=True):
    """A decision that came out differently: ``recorded`` (or made by one decider) against ``decided``."""

    decision_id: int
    seq: int
    """Its first event, or the one that the next event got."""
    at: float
    decider_version: int
    command: Command
    recorded: Outcome
    decided: Outcome

    def render(self) -> str:
        """Position and command, what both say in words where that differs, the first values that differ."""
        head = f"Decision {self.decision_id} (event {self.seq}), because {asked(self.command)}:"
        before, after = self.recorded.sentences(), self.decided.sentences()
        lines = [f"  - {line}" for line in before if line not in after]
        lines += [f"  + {line}" for line in after if line not in before]
        unequal = islice(_unequal(self.recorded.plain(), self.decided.plain(), ""), _VALUES)
        return "\n".join([head, *lines, *(f"  at {line}" for line in unequal)])


def _unequal(a: Any, b: Any, path: str) -> Iterator[str]:
    """The places at which two JSON-able values differ, with both values."""
    left, right = _parts(a), _parts(b)
    if left is not None and right is not None and type(a) is type(b):
        for part in {**left, **right}:
            yield from _unequal(left.get(part), right.get(part), path + part)
    elif a != b:
        yield f"{path[1:]}: {encode(a)} against {encode(b)}"


def _parts(value: Any) -> dict[str, Any] | None:
    """The values inside an object or array by the path that leads to them; None for what has no inside."""
    if isinstance(value, dict):
        return {f".{key}": part for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return {f"[{index}]": part for index, part in enumerate(cast("list[Any]", value))}
    return None


class NotADecider(Exception):
    """The exception type given for refusals is not raised with a cause."""


class Court:
    """Decides again with one decider. ``refusal`` is the exception type with which it refuses a command."""

    def __init__(self, decide: Decide, refusal: type[Exception]) -> None:
        self._decide = decide
        self._refusal = refusal

    def outcome(self, state: ClusterState, decision: Committed) -> Outcome:
        """What the decider makes of a recorded command and its facts. A broken decider is an outcome too."""
        try:
            return Outcome(self._decide(state, decision.command, decision.facts))
        except self._refusal as refusal:
            return Outcome([], _cause(refusal))
        except Exception as error:
            return Outcome([], error=f"{type(error).__name__}: {error}")


def recorded_outcome(decision: Committed) -> Outcome:
    """What the log says was decided."""
    return Outcome([recorded.event for recorded in decision.events], decision.rejection)


def difference(decision: Committed, recorded: Outcome, decided: Outcome) -> Difference:
    """A `Difference` of this decision."""
    return Difference(
        decision.decision_id,
        decision.first_seq,
        decision.at,
        decision.decider_version,
        decision.command,
        recorded,
        decided,
    )


def decisions_with_state(
    reader: LogReader, start: int = 0, upto: int | None = None
) -> Iterator[tuple[Committed, ClusterState]]:
    """Every decision after decision ``start`` with the state that it was made on.

    The state is one object that moves on with the iteration.
    """
    state: ClusterState | None = None
    for decision in reader.decisions(after=start, upto=upto):
        if state is None:
            state = state_at(reader, decision.first_seq - 1)
        yield decision, state
        for recorded in decision.events:
            apply(state, recorded.seq, recorded.epoch, recorded.at, recorded.event)


def _cause(refusal: Exception) -> Cause:
    cause = getattr(refusal, "cause", None)
    if not isinstance(cause, Cause):
        raise NotADecider(f"{type(refusal).__name__} has no cause; give the type that refusals have.")
    return cause
