"""What must hold in every run, checked when it could first break."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from support.sim.disk import Branch, Decision, Disk

from actors.ordering.epochs import NO_EPOCH, Epoch
from events import catalogue as ev
from projections.invariants import violations
from projections.state import ClusterState

_TERMINAL = ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled


class Broken(Exception):
    """An invariant does not hold."""


class Checked(Protocol):
    """A node, as the checks see it."""

    node_id: str
    alive: bool
    disk: Disk
    state: ClusterState

    @property
    def works_in(self) -> Epoch | None: ...


class Checks:
    """One for each run. ``crashes_only``: no link ever fails, and nodes end one at a time."""

    def __init__(self, *, crashes_only: bool) -> None:
        self.crashes_only = crashes_only
        self.disks: dict[str, Disk] = {}
        self.committed: list[Decision] = []
        self.acknowledged: list[Decision] = []
        self.epochs = 0
        self._reported: set[Decision] = set()
        self._lost: set[Decision] = set()
        self._place: dict[tuple[Epoch, int], tuple[Decision, Decision | None]] = {}
        self._masters: dict[Epoch, str] = {}
        self._worked_in: dict[str, int] = {}
        self._on_two: set[Decision] = set()
        self._folded: set[Decision] = set()

    # Order

    def appended(self, node_id: str, decisions: Iterable[Decision]) -> None:
        """Same epoch and index, same decision and same prefix; indexes without gaps; epochs never fall."""
        rows = self.disks[node_id].rows
        for decision in decisions:
            before = rows[decision.index - 2] if decision.index > 1 else None
            if decision.index > len(rows) or rows[decision.index - 1] is not decision:
                raise Broken(f"{node_id} has decision {decision.index} at another place of its log")
            known = self._place.setdefault((decision.epoch, decision.index), (decision, before))
            if known != (decision, before):
                raise Broken(f"two decisions, or two pasts, at {decision.epoch} {decision.index}")
            self._check_epoch(node_id, decision, before)
            self._note_copies(decision)

    def _check_epoch(self, node_id: str, decision: Decision, before: Decision | None) -> None:
        last = before.epoch if before else NO_EPOCH
        begins = any(isinstance(event, ev.EpochStarted) for event in decision.draft.events)
        if decision.epoch.n < last.n or (decision.epoch.n > last.n) != begins:
            raise Broken(f"{node_id}: {decision.epoch} follows {last} at {decision.index}")
        if decision.epoch.n == last.n and decision.epoch != last:
            raise Broken(f"{node_id}: two masters of one number, {decision.epoch} and {last}")

    def _note_copies(self, decision: Decision) -> None:
        if self.crashes_only and not decision.draft.observation:
            copies = sum(_holds(disk, decision) for disk in self.disks.values())
            if copies >= 2:
                self._on_two.add(decision)

    def once(self, node_id: str) -> None:
        """No command twice in one log."""
        disk = self.disks[node_id]
        if len(disk.commands) != len(disk.rows):
            raise Broken(f"{node_id} has a command twice in its log")

    def leads(self, node_id: str, epoch: Epoch) -> None:
        """One master an epoch, and no epoch is used twice."""
        if epoch in self._masters:
            raise Broken(f"{node_id} leads in {epoch}, which was used before")
        self._masters[epoch] = node_id
        self.epochs += 1
        self.works_in(node_id, epoch)

    def works_in(self, node_id: str, epoch: Epoch) -> None:
        """A node never goes back to a smaller number, not even over a restart."""
        if epoch.n < self._worked_in.get(node_id, 0):
            raise Broken(f"{node_id} works in {epoch} after {self._worked_in[node_id]}")
        self._worked_in[node_id] = epoch.n

    # Nothing is lost

    def rewound(self, branch: Branch) -> None:
        """What all nodes held, or without partitions two, is never taken out of a log."""
        for decision in branch.decisions:
            held = sum(_holds(disk, decision) for disk in self.disks.values())
            if held == len(self.disks) - 1:
                raise Broken(f"{decision.epoch} {decision.index} was on all nodes and is rejected")
            if decision in self._on_two:
                raise Broken(f"{decision.epoch} {decision.index} was on two nodes and is rejected")

    def reported(self, branch: Branch) -> None:
        """Clients were told of a rejected branch."""
        self._reported.update(branch.decisions)

    def power_cut(self, lost: Iterable[Decision]) -> None:
        """Only readings may go."""
        for decision in lost:
            if not decision.draft.observation:
                raise Broken(f"{decision.index} was committed and is gone after a power cut")
            self._lost.add(decision)

    # What the log means

    def folded(self, decision: Decision, state: ClusterState) -> None:
        """After each event that is new to all: the invariants of the state."""
        broken = violations(state)
        if broken:
            raise Broken(f"after decision {decision.index}: {'; '.join(broken)}")

    def is_new(self, decision: Decision) -> bool:
        """True the first time a decision is folded: what it makes of a state is the same everywhere."""
        if decision in self._folded:
            return False
        self._folded.add(decision)
        return True

    def lost_node(self, node_id: str, *, really: bool) -> None:
        """Without partitions nobody is taken for dead who lives."""
        if self.crashes_only and not really:
            raise Broken(f"{node_id} was taken for lost and is alive")

    def shut_down(self, runner_id: str, state: ClusterState) -> None:
        """Without partitions only a decision stops a runner: a new master unloads nothing."""
        if self.crashes_only and runner_id not in state.runners:
            raise Broken(f"{runner_id} is shut down, and no decision took it out of service")

    # The end

    def are_one(self, nodes: list[Checked]) -> None:
        """Some time after the heal: one master, and all work in its epoch."""
        epochs = {node.works_in for node in nodes}
        if len(epochs) != 1 or None in epochs:
            raise Broken(f"no common master in the end: { {n.node_id: n.works_in for n in nodes} }")

    def finish(self, nodes: list[Checked]) -> None:
        """In the end: equal logs and states, every task ended once, nothing silently gone."""
        self.are_one(nodes)
        logs = [[row.body for row in node.disk.rows] for node in nodes]
        if any(log != logs[0] for log in logs):
            raise Broken(f"the logs differ in the end: {[len(log) for log in logs]}")
        if any(node.state != nodes[0].state for node in nodes):
            raise Broken("the states differ in the end")
        self._check_nothing_gone(set(nodes[0].disk.rows))
        self._check_tasks(nodes[0].disk.rows)
        if nodes[0].state.tasks:
            raise Broken(f"tasks never ended: {list(nodes[0].state.tasks.values())}")

    def _check_nothing_gone(self, common: set[Decision]) -> None:
        branches = {d for disk in self.disks.values() for branch in disk.rejected for d in branch.decisions}
        for decision in self.committed:
            if decision not in common and decision not in branches and decision not in self._lost:
                raise Broken(f"{decision.epoch} {decision.index} is gone without a trace")
        for decision in self.acknowledged:
            if decision not in common and decision not in self._reported:
                raise Broken(f"{decision.epoch} {decision.index} was acknowledged and is silently gone")

    def _check_tasks(self, rows: list[Decision]) -> None:
        ends: dict[str, int] = {}
        for event in (event for row in rows for event in row.draft.events):
            if isinstance(event, ev.TaskCreated):
                ends[event.task_id] = 0
            elif isinstance(event, _TERMINAL):
                ends[event.task_id] += 1
        wrong = {task_id: count for task_id, count in ends.items() if count != 1}
        if wrong:
            raise Broken(f"tasks with other than one end: {wrong}")


def _holds(disk: Disk, decision: Decision) -> bool:
    return len(disk.rows) >= decision.index and disk.rows[decision.index - 1] is decision
