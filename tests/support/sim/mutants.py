"""Actors and ordering with a bug planted: what the simulator must find."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from support.sim.network import Weather
from support.sim.run import Bias

from actors import decider, journal
from actors.deferred import Deferred
from actors.journal import Journal
from actors.master import Master
from actors.ordering import core
from actors.ordering import messages as msg
from actors.ordering.core import Core
from actors.ordering.epochs import Run
from actors.ordering.messages import Status
from actors.ordering.peers import Peers
from actors.reporter import Reporter
from actors.worker import Worker
from events.base import Command
from events.commands import Facts
from events.log import EventLog
from events.record import Committed, Recorded
from projections.state import ClusterState

# Ordering


class NoBump(Core):
    """A new master goes on in the newest epoch number that it knows."""

    def _next_n(self, at_least: int) -> int:
        return max(1, super()._next_n(at_least) - 1)


class TakesGaps(Core):
    """A follower appends whatever its master sends."""

    def _take(self, node_id: str, entries: msg.Entries) -> None:
        after = min(entries.after, self._log.last()[1])
        super()._take(node_id, msgspec.structs.replace(entries, after=after))


class NeverStepsDown(Peers):
    """A master that meets a greater one goes on."""

    def is_greater(self, master: Status, own: Status) -> bool:
        return False


class ElectsById(Peers):
    """The greatest id leads, whatever its log has."""

    def standing(self, node_id: str, status: Status, own: Status) -> tuple[object, ...]:
        return (node_id,)


class IgnoresTickets(Core):
    """A node follows whoever welcomes it, however old the request."""

    def _welcomed(self, node_id: str, welcome: msg.Welcome) -> None:
        ticket = self._joining.ticket if self._joining is not None else ""
        super()._welcomed(node_id, msgspec.structs.replace(welcome, ticket=ticket))


class TakesWhileJoining(Core):
    """A follower that has sent its run map goes on appending."""

    def _take(self, node_id: str, entries: msg.Entries) -> None:
        joining, self._joining = self._joining, None
        super()._take(node_id, entries)
        self._joining = joining


def ignore_epochs(ours: Sequence[Run], theirs: Sequence[Run]) -> int:
    """Logs are taken for the same as far as the shorter one goes."""
    return min(ours[-1].last, theirs[-1].last) if ours and theirs else 0


# Actors


def forget_promise(path: Path) -> int:
    """A promise does not outlive the process."""
    return 0


def tell_nobody(self: Master) -> None:
    """What a rewind takes out of the log is not told."""


def drop_report(self: Reporter, command_id: str, answer: Deferred[Any]) -> None:
    """A report that the master was not there to take counts as taken."""
    self._under_way.discard(command_id)
    self._waiting.pop(command_id, None)


def append_always(self: Journal, message: journal.Append) -> None:
    """A node that follows commits what its master decided before it knew."""
    self._waiting.append(message)


def stay_where_it_was(self: Worker) -> None:
    """The worker goes on with the state of the history that lost."""


def decide_again(self: Master, command: Any) -> Any:
    """A repeated command is decided again."""
    if self._state is None:
        return self._hand_over(command)
    state = self._state
    reply = self._decide(state, command, epoch=state.epoch) or self._unchanged(state)
    self._reconcile()
    return reply


def answer_at_once(self: Master, state: ClusterState, command: Command, facts: Facts, *made: Any) -> Any:
    """Who asks is answered when the decision is made, not when the log has it."""
    seq = state.seq
    _append(self, state, command, facts, *made)
    events, rejection = made
    answer = Deferred[Committed]()
    committed = Committed(
        decision_id=self._reader.last_decision() + len(self._in_flight),
        command_id=command.command_id,
        command=command,
        facts=facts,
        decider=decider.NAME,
        decider_version=decider.VERSION,
        epoch=facts.epoch,
        origin=self._node_id,
        at=facts.now,
        rejection=rejection,
        first_seq=seq + 1,
        events=[
            Recorded(seq=n, epoch=facts.epoch, decision_id=0, origin="", at=facts.now, event=event)
            for n, event in enumerate(events, seq + 1)
        ],
    )
    journal.settle(answer, committed)
    return answer


def never_sync(self: EventLog, durable: bool) -> Any:
    """Decisions are committed as readings are."""
    return _transaction(self, False)


_append = Master._append
_transaction = EventLog._transaction


class Mutant(NamedTuple):
    """What to replace, how many seeds find it several times, and what makes that more likely.

    Each change of the code draws other runs from the same seeds, so one that finds it is not enough: with ten
    expected, no change in 20,000 finds none. The first that does ends the search.
    """

    seeds: int
    replaced: tuple[Any, str, Any]
    bias: Bias = Bias()

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """A context in which the bug is there."""
        owner, name, planted = self.replaced
        with mock.patch.object(owner, name, planted):
            yield


AMBUSHED = Bias(crashes_only=False, ambush=0.3)
UNORDERLY = Bias(
    crashes_only=False, weather=Weather(loss=0.05, doubled=0.3, overtaking=True, delay=(0.0005, 0.3))
)
SLUGGISH = Bias(crashes_only=False, sloth=0.25)

MUTANTS = {
    "no epoch bump": Mutant(20, (journal, "Core", NoBump)),
    "promise not durable": Mutant(120, (journal, "_read_promise", forget_promise), AMBUSHED),
    "gap accepted": Mutant(20, (journal, "Core", TakesGaps), AMBUSHED),
    "fork ignores epochs": Mutant(20, (core, "fork_point", ignore_epochs), AMBUSHED),
    "no step-down": Mutant(40, (core, "Peers", NeverStepsDown)),
    "branch not told": Mutant(80, (Master, "_report_branches", tell_nobody)),
    "election by id only": Mutant(100, (core, "Peers", ElectsById), Bias(crashes_only=True)),
    "old welcome accepted": Mutant(20, (journal, "Core", IgnoresTickets), UNORDERLY),
    "appends while joining": Mutant(120, (journal, "Core", TakesWhileJoining), AMBUSHED),
    "report dropped": Mutant(60, (Reporter, "_settled", drop_report)),
    "a follower commits": Mutant(60, (Journal, "_append", append_always), SLUGGISH),
    "answers before commit": Mutant(90, (Master, "_append", answer_at_once), Bias(crashes_only=False)),
    "worker ignores rewinds": Mutant(20, (Worker, "_rewound", stay_where_it_was)),
    "repeated command decided again": Mutant(20, (Master, "_answer", decide_again)),
    "decisions not synced": Mutant(20, (EventLog, "_transaction", never_sync)),
}
