"""Ordering with a bug planted: what the simulator must find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from support.sim.disk import Branch, Disk

from actors.ordering import core
from actors.ordering import messages as msg
from actors.ordering.core import Core
from actors.ordering.epochs import Epoch, Run
from actors.ordering.messages import Status
from actors.ordering.peers import Peers


class NoBump(Core):
    """A new master goes on in the newest epoch number that it knows."""

    def _next_n(self, at_least: int) -> int:
        return max(1, super()._next_n(at_least) - 1)


class ForgetfulDisk(Disk):
    """A promise does not outlive the process."""

    @property
    def promised(self) -> int:
        return 0

    @promised.setter
    def promised(self, n: int) -> None:
        pass


class TakesGaps(Core):
    """A follower appends whatever its master sends."""

    def _take(self, node_id: str, entries: msg.Entries) -> None:
        after = min(entries.after, self._log.last()[1])
        super()._take(node_id, msgspec.structs.replace(entries, after=after))


class NeverStepsDown(Peers):
    """A master that meets a greater one goes on."""

    def is_greater(self, master: Status, own: Status) -> bool:
        return False


class SilentDisk(Disk):
    """What a rewind takes out of the log is thrown away."""

    def rewind(self, fork: int, winner: Epoch, reason: str) -> Branch:
        super().rewind(fork, winner, reason)
        self.rejected.pop()
        return Branch(fork, winner, reason, [])


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


class Mutant(NamedTuple):
    """What to replace, and how many seeds suffice to find it."""

    seeds: int
    make_core: type[Core] = Core
    make_disk: type[Disk] = Disk
    peers: type[Peers] = Peers
    fork_point: Any = core.fork_point
    crashes_only: bool | None = None

    def planted(self) -> Any:
        """A context in which the bug is there."""
        return mock.patch.multiple(core, Peers=self.peers, fork_point=self.fork_point)


MUTANTS = {
    "no epoch bump": Mutant(20, make_core=NoBump),
    "promise not durable": Mutant(60, make_disk=ForgetfulDisk),
    "gap accepted": Mutant(60, make_core=TakesGaps),
    "fork ignores epochs": Mutant(60, fork_point=staticmethod(ignore_epochs)),
    "no step-down": Mutant(20, peers=NeverStepsDown),
    "suffix discarded silently": Mutant(20, make_disk=SilentDisk),
    "election by id only": Mutant(100, peers=ElectsById, crashes_only=True),
    "old welcome accepted": Mutant(60, make_core=IgnoresTickets),
    "run map too early": Mutant(600, make_core=ReviewsTooEarly),
    "appends while joining": Mutant(60, make_core=TakesWhileJoining),
}
