"""What must hold in every run, checked when it could first break."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from support.sim.copies import Copy, Row
from support.sim.runners import SimulatedRunner
from support.sim.world import World

from actors import decider
from actors.master import Master
from actors.ordering.epochs import NO_EPOCH, Epoch
from actors.refusal import Rejected
from actors.system import ActorIncident
from actors.worker import Worker
from events import catalogue as ev
from events import commands as cmd
from events import status as st
from events.record import Committed
from projections.invariants import violations
from projections.state import ClusterState
from projections.verify import verify

if TYPE_CHECKING:
    from support.sim.node import Machine, SimulatedNode

UNUSABLE = "The node starts with an empty log"
"""Of the one error that a journal meets by ending; see `actors.log_aside`."""

_TERMINAL = ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled


class Broken(Exception):
    """An invariant does not hold."""


class Checks(logging.Handler):
    """One for each run. ``crashes_only``: no link ever fails, and nodes end one at a time.

    An error in the log of the process is one more thing that must not be, where the simulation's thread has
    logged it.
    """

    def __init__(self, world: World, *, crashes_only: bool) -> None:
        super().__init__(logging.ERROR)
        self.crashes_only = crashes_only
        self.copies: dict[str, Copy] = {}
        self.epochs = 0
        self.rejected = 0
        self.bases = 0
        """Logs that began after another one's decision."""
        self._world = world
        self._thread = threading.get_ident()
        self._committed: dict[str, Row] = {}
        self._acknowledged: dict[str, Row] = {}
        self._lost: set[str] = set()
        self._set_aside: set[str] = set()
        self._at: dict[tuple[Epoch, int], str] = {}
        self._on_two: set[str] = set()
        self._folded: set[str] = set()
        self._worked_in: dict[str, int] = {}
        self.on_role: Callable[[str], object] = lambda node_id: None
        """Called where a node works in an epoch from now on."""

    def breaks(self, what: str) -> None:
        """The run ends with this; the first counts."""
        if self._world.broken is None:
            self._world.broken = Broken(f"at {self._world.now:.3f} s: {what}")

    def copy_of(self, node_id: str) -> Copy:
        """A new machine."""
        copy = self.copies[node_id] = Copy(self, node_id)
        return copy

    # Actors

    def emit(self, record: logging.LogRecord) -> None:
        """An error was logged, here or by what another test has left behind."""
        if record.thread != self._thread:
            return
        error = record.exc_info[1] if record.exc_info else ""
        self.breaks(f"{record.name}: {record.getMessage()} {error!r}")

    def incident(self, node_id: str, incident: ActorIncident) -> None:
        """No actor ends but for an orderly stop."""
        if UNUSABLE in incident.error:
            self._set_aside.add(node_id)
        elif incident.action not in ("rejected", "dead_letters"):
            self.breaks(f"{node_id}: {incident}")

    # Order

    def appended(self, copy: Copy, row: Row, before: Row | None, *, begins: bool) -> None:
        """Same epoch and index, same decision and same past; no gaps; epochs never fall; no command twice."""
        last = before.epoch if before is not None else NO_EPOCH
        if row.committed.decision_id != row.index:
            self.breaks(f"{copy.node_id} has decision {row.committed.decision_id} at {row.index}")
        if self._at.setdefault((row.epoch, row.index), row.hash) != row.hash:
            self.breaks(f"two decisions, or two pasts, at {row.epoch} {row.index}")
        if row.epoch.n < last.n or (row.epoch.n > last.n) != begins or row.epoch.n != row.committed.epoch:
            self.breaks(f"{copy.node_id}: {row.epoch} follows {last} at {row.index}")
        if row.committed.command_id in copy.commands:
            self.breaks(f"{copy.node_id} has {row.committed.command_id} twice in its log")
        if row.hash not in self._committed:
            self._committed[row.hash] = row
            self.epochs += begins
        elif self.crashes_only and not row.observation:
            self._on_two.add(row.hash)

    def works_in(self, node_id: str, epoch: Epoch | None) -> None:
        """A node never goes back to a smaller number, not even over a restart."""
        if epoch is not None and epoch.n < self._worked_in.get(node_id, 0):
            self.breaks(f"{node_id} works in {epoch} after {self._worked_in[node_id]}")
        elif epoch is not None:
            self._worked_in[node_id] = epoch.n
            self.on_role(node_id)

    def past(self, index: int, own_hash: str) -> list[Row]:
        """The log up to a decision that another node offers to begin after."""
        for copy in self.copies.values():
            if len(copy.rows) >= index and copy.rows[index - 1].hash == own_hash:
                self.bases += 1
                return copy.rows[:index]
        self.breaks(f"a log begins after decision {index}, which no log has")
        return []

    # Nothing is lost

    def acknowledge(self, node_id: str, answer: Committed) -> None:
        """A client was told of a decision: its node has it, or had it a moment ago.

        The history that it lost it to may have another decision on the same command.
        """
        copy = self.copies[node_id]
        for row in (copy.commands.get(answer.command_id), copy.gone.get(answer.command_id)):
            if row is not None and (row.index, row.committed.epoch) == (answer.decision_id, answer.epoch):
                self._acknowledged[row.hash] = row
                return
        self.breaks(f"{node_id} has acknowledged {answer.command_id}, which its log does not have")

    def rewound(self, branch: Iterable[Row]) -> None:
        """What all nodes held, or without partitions two, is never taken out of a log."""
        for row in branch:
            self.rejected += 1
            if sum(copy.holds(row) for copy in self.copies.values()) == len(self.copies) - 1:
                self.breaks(f"{row.epoch} {row.index} was on all nodes and is rejected")
            if row.hash in self._on_two:
                self.breaks(f"{row.epoch} {row.index} was on two nodes and is rejected")

    def lost(self, node_id: str, rows: Iterable[Row], *, power: bool) -> None:
        """Only a power cut may take something from a log, and only readings.

        A log that went on after a base and lost against an older fork is set aside as a whole, in a file.
        """
        aside = node_id in self._set_aside
        self._set_aside.discard(node_id)
        for row in rows:
            if not aside and not (power and row.observation):
                self.breaks(f"decision {row.index} was committed on {node_id} and is gone after a restart")
            self._lost.add(row.hash)

    # What the log means

    def is_new(self, row: Row) -> bool:
        """True the first time a decision is folded: what it makes of a state is the same everywhere."""
        known = row.hash in self._folded
        self._folded.add(row.hash)
        return not known

    def folded(self, row: Row, state: ClusterState) -> None:
        """After each event that is new to all: the invariants of the state."""
        broken = violations(state)
        if broken:
            self.breaks(f"after decision {row.index}: {'; '.join(broken)}")

    def adopted(self, copy: Copy) -> list[list[str]]:
        """The runners of each instance that went on with those that it had."""
        return [
            [rank.runner_id for rank in row.committed.command.placement.ranks]
            for row in copy.rows
            if isinstance(row.committed.command, cmd.ReportAdoptable) and row.committed.events
        ]

    # The end

    def are_one(self, nodes: list[SimulatedNode]) -> None:
        """Some time after the heal: one master, and all work in its epoch."""
        epochs = {node.works_in for node in nodes}
        if len(epochs) != 1 or None in epochs:
            self.breaks(f"no common master in the end: { {n.node_id: n.works_in for n in nodes} }")

    def finish(self, machines: list[Machine]) -> None:
        """In the end: one log, one state, every task ended once, nothing silently gone, all as it is told."""
        nodes = [machine.node for machine in machines if machine.node is not None]
        self.are_one(nodes)
        copies = [machine.copy for machine in machines]
        first = copies[0]
        if any([row.hash for row in copy.rows] != [row.hash for row in first.rows] for copy in copies):
            self.breaks(f"the logs differ in the end: {[len(copy.rows) for copy in copies]}")
        for node in nodes:
            self._check_node(node, first.state)
        self._check_nothing_gone(first, nodes)
        self._check_tasks(first.rows)
        self._check_decisions(nodes[0])
        if first.state.tasks:
            self.breaks(f"tasks never ended: {list(first.state.tasks.values())}")
        if self._world.broken is not None:
            raise self._world.broken

    def _check_node(self, node: SimulatedNode, state: ClusterState) -> None:
        """All parts of a node have the one state, and the log says of its processes what is so."""
        worker, master = node.process.find(Worker), node.process.find(Master)
        gateway = node.api.gateway if node.api is not None else None
        views = [worker and worker._state, gateway and gateway.state, master and (master._state or state)]
        if any(view != state for view in views):
            self.breaks(f"a part of {node.node_id} has another state in the end")
        known = state.nodes.get(node.node_id)
        if known is None or not known.up or known.incarnation != node.incarnation:
            self.breaks(f"{node.node_id} runs as {node.incarnation}, and the log has {known}")
        with node.reader() as reader:
            if reader.base() is not None:
                self.breaks(f"{node.node_id} has not got its log's past")
        if node.reports_waiting:
            self.breaks(f"{node.node_id} has reports in the end that nobody has taken")
        runners = {r.runner_id: r for r in node.process.all(SimulatedRunner)}
        there = {runner_id: type(runner.status) for runner_id, runner in runners.items()}
        told = {
            runner.runner_id: type(runner.status)
            for runner in state.runners.values()
            if runner.node_id == node.node_id and not isinstance(runner.status, st.Failed | st.Shutdown)
        }
        if there != told:
            self.breaks(f"{node.node_id} has the runners {there}, and the log says {told}")

    def _check_nothing_gone(self, common: Copy, nodes: list[SimulatedNode]) -> None:
        in_log = {row.hash for row in common.rows}
        branches = {command for node in nodes for command in node.rejected_commands()}
        told = {
            command_id
            for row in common.rows
            for recorded in row.committed.events
            if isinstance(recorded.event, ev.BranchRejected)
            for command_id in recorded.event.command_ids
        }
        for row_hash, row in self._committed.items():
            if row_hash not in in_log | self._lost and row.committed.command_id not in branches:
                self.breaks(f"{row.epoch} {row.index} is gone without a trace")
        for row_hash, row in self._acknowledged.items():
            if row_hash not in in_log | self._lost and row.committed.command_id not in told:
                what = f"{type(row.committed.command).__name__} at {row.epoch} {row.index}"
                self.breaks(f"{what} was acknowledged and is silently gone")

    def _check_tasks(self, rows: list[Row]) -> None:
        ends: dict[str, int] = {}
        for event in (recorded.event for row in rows for recorded in row.committed.events):
            if isinstance(event, ev.TaskCreated):
                ends[event.task_id] = 0
            elif isinstance(event, _TERMINAL):
                ends[event.task_id] += 1
        wrong = {task_id: count for task_id, count in ends.items() if count != 1}
        if wrong:
            self.breaks(f"tasks with other than one end: {wrong}")

    def _check_decisions(self, node: SimulatedNode) -> None:
        """Decided again, every decision comes out the same."""
        with node.reader() as reader:
            report = verify(reader, decider.decide, refusal=Rejected, decider_version=decider.VERSION)
        if not report.ok:
            self.breaks(f"decided again, something else comes out: {report.render()}")
