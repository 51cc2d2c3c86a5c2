"""Actors and ordering with a bug planted: what the simulator must find."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from actors import journal
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
from events.log import EventLog

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


class ReviewsTooEarly(Core):
    """A run map is sent before the entries of the same input are in the log."""

    def _review(self) -> None:
        effects, self._effects = self._effects, []
        super()._review()
        self._effects = effects + self._effects


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


def never_sync(self: EventLog, durable: bool) -> Any:
    """Decisions are committed as readings are."""
    return _transaction(self, False)


_transaction = EventLog._transaction


class Mutant(NamedTuple):
    """What to replace, and how many seeds suffice to find it."""

    seeds: int
    replaced: tuple[Any, str, Any]
    crashes_only: bool | None = None

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """A context in which the bug is there."""
        owner, name, planted = self.replaced
        with mock.patch.object(owner, name, planted):
            yield


MUTANTS = {
    "no epoch bump": Mutant(20, (journal, "Core", NoBump)),
    "promise not durable": Mutant(60, (journal, "_read_promise", forget_promise)),
    "gap accepted": Mutant(60, (journal, "Core", TakesGaps)),
    "fork ignores epochs": Mutant(60, (core, "fork_point", ignore_epochs)),
    "no step-down": Mutant(20, (core, "Peers", NeverStepsDown)),
    "branch not told": Mutant(20, (Master, "_report_branches", tell_nobody)),
    "election by id only": Mutant(100, (core, "Peers", ElectsById), crashes_only=True),
    "old welcome accepted": Mutant(60, (journal, "Core", IgnoresTickets)),
    "run map too early": Mutant(600, (journal, "Core", ReviewsTooEarly)),
    "appends while joining": Mutant(60, (journal, "Core", TakesWhileJoining)),
    "report dropped": Mutant(20, (Reporter, "_settled", drop_report)),
    "a follower commits": Mutant(60, (Journal, "_append", append_always)),
    "worker ignores rewinds": Mutant(20, (Worker, "_rewound", stay_where_it_was)),
    "repeated command decided again": Mutant(20, (Master, "_answer", decide_again)),
    "decisions not synced": Mutant(20, (EventLog, "_transaction", never_sync)),
}
