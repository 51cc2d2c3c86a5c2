"""A node: the shell around the real ordering core, with a master, a worker and reports of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from support.sim.checks import Checks
from support.sim.disk import Decision, Disk
from support.sim.master import Answer, Master
from support.sim.network import Network
from support.sim.worker import Worker
from support.sim.world import BEGIN, World

from actors.ordering import interface as io
from actors.ordering.core import Core
from actors.ordering.epochs import Epoch
from events.base import Command
from projections.evolve import apply
from projections.state import ClusterState

TIMING = io.Timing(patience=5.0)
ASK_S = 2.0
"""Until a command that was passed on is given up; its client asks again."""

Reply = Callable[[Answer | None], None]


class Forward(NamedTuple):
    """A command for the master."""

    command: Command


class Answered(NamedTuple):
    """The master's answer; None: ask again."""

    command_id: str
    answer: Answer | None


class Node:
    """Starts and ends as a process does; its disk stays."""

    def __init__(
        self,
        world: World,
        network: Network,
        checks: Checks,
        node_id: str,
        make_disk: Callable[[], Disk] = Disk,
        make_core: Callable[..., Core] = Core,
    ) -> None:
        self.world = world
        self.network = network
        self.checks = checks
        self.node_id = node_id
        self.alive = False
        self.starts = 0
        self.disk = make_disk()
        self._make_core = make_core
        self._skew = world.between(-0.5, 0.5)
        checks.disks[node_id] = self.disk
        network.add(self)

    def start(self) -> None:
        """A new process on the disk that there is."""
        self.alive = True
        self.starts += 1
        self.incarnation = f"run-{self.starts}"
        self.peers: set[str] = set()
        self.master: Master | None = None
        self._inputs: deque[io.Input] = deque()
        self._busy = False
        self._timer_at = float("inf")
        self._asked: dict[str, list[Reply]] = {}
        self._answers: dict[str, Answer | None] = {}
        me = io.Member(self.node_id, self.incarnation)
        self.core = self._make_core(me, self.disk.promised, self.disk, self.world.now, TIMING)
        self.worker = Worker(self)
        self._fold_anew()
        self._set_timer()
        self.network.started(self.node_id)

    def end(self, *, power: bool) -> None:
        """The process is killed, or the machine loses its power and with it what was not synced."""
        self.alive = False
        self.network.ended(self.node_id, silently=power)
        if power:
            self.checks.power_cut(self.disk.cut_power())

    @property
    def works_in(self) -> Epoch | None:
        """The epoch that this node works in."""
        return self.core.epoch if self.alive else None

    @property
    def has_work(self) -> bool:
        """True while tasks are open or reports have not been answered."""
        return bool(self.state.tasks) or self.worker.has_reports

    def wall(self) -> float:
        """Unix seconds on this node's own clock."""
        return round(BEGIN + self.world.now + self._skew, 6)

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` later, unless the process has ended by then."""
        self.world.after(delay, self._if_still, self.starts, action, arguments)

    def _if_still(self, start: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.alive and self.starts == start:
            action(*arguments)

    # The network

    def peer_up(self, node_id: str) -> None:
        self.peers.add(node_id)
        self._input(io.PeerUp(node_id))

    def peer_down(self, node_id: str) -> None:
        if self.alive:
            self.peers.discard(node_id)
            self._input(io.PeerDown(node_id))
            if self.master is not None:
                self.master.misses(node_id)

    def message(self, node_id: str, message: Any) -> None:
        match message:
            case Forward(command):
                if self.master is None:
                    self.network.send(self.node_id, node_id, Answered(command.command_id, None))
                else:
                    answer = self.master.ask(command)
                    self.network.send(self.node_id, node_id, Answered(command.command_id, answer))
            case Answered(command_id, answer):
                self._answers[command_id] = answer
                self._settle()
            case _:
                self._input(io.Received(node_id, message))

    # Commands

    def ask(self, command: Command, reply: Reply) -> None:
        """Decide a command here or where the master is. The reply is None where nobody could be asked."""
        if self.master is not None:
            reply(self.master.ask(command))
        elif self.core.master is None or self.core.master == self.node_id:
            reply(None)
        else:
            self._asked.setdefault(command.command_id, []).append(reply)
            self.network.send(self.node_id, self.core.master, Forward(command))
            self.after(ASK_S, self._reply, command.command_id, None)

    def _settle(self) -> None:
        """An answer counts once the log that it was given on is here: it may be lost with its master."""
        for command_id, answer in list(self._answers.items()):
            if answer is None or (answer.epoch == self.core.epoch and answer.upto <= len(self.disk.rows)):
                self._reply(command_id, answer)

    def _reply(self, command_id: str, answer: Answer | None) -> None:
        self._answers.pop(command_id, None)
        for reply in self._asked.pop(command_id, ()):
            reply(answer)

    def commit(self, decision: Decision) -> None:
        """A decision of the master here becomes durable, and is told on."""
        self.disk.append([decision])
        self.checks.committed.append(decision)
        self.checks.appended(self.node_id, [decision])
        self.checks.once(self.node_id)
        self._fold([decision])
        self._input(io.Committed(decision.index))

    # Order

    def _input(self, event: io.Input) -> None:
        """Tell the core and carry out what follows, all of it before the next input."""
        self._inputs.append(event)
        if self._busy:
            return
        self._busy = True
        while self._inputs:
            for effect in self.core.handle(self.world.now, self._inputs.popleft()):
                self._carry_out(effect)
        self._busy = False
        self._settle()
        self._set_timer()

    def _carry_out(self, effect: io.Effect) -> None:
        match effect:
            case io.Persist(promised):
                self.disk.promise(promised)
            case io.Send(node_id, message):
                self.network.send(self.node_id, node_id, message)
            case io.Lead(epoch):
                self.checks.leads(self.node_id, epoch)
                self.master = Master(self, epoch)
                self.after(0.0, self.master.take_office)
            case io.Follow(_, epoch):
                self.checks.works_in(self.node_id, epoch)
                self.master = None
                self.after(0.0, self.worker.say_again)
            case io.Masterless():
                self.master = None
            case io.Append(entries):
                self._append(entries)
            case io.Rewind():
                self._rewind(effect)
            case io.Held():
                pass

    def _append(self, entries: list[bytes]) -> None:
        decisions = [Decision.decode(entry) for entry in entries]
        self.disk.append(decisions)
        self.checks.appended(self.node_id, decisions)
        self.checks.once(self.node_id)
        self._fold(decisions)

    def _rewind(self, effect: io.Rewind) -> None:
        branch = self.disk.rewind(effect.fork, effect.winner, effect.reason)
        self.checks.rewound(branch)
        self._fold_anew()
        self._append(effect.entries)
        self.checks.reported(branch)
        self.worker.rewound(branch)

    def _fold(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            draft = decision.draft
            new = self.checks.is_new(decision)
            for event in draft.events:
                apply(self.state, self.state.seq + 1, draft.epoch, draft.facts.now, event)
                if new:
                    self.checks.folded(decision, self.state)
                self.worker.learn(event)
        self.worker.act_soon()

    def _fold_anew(self) -> None:
        """The state of the log as it is, which is no news."""
        self.state = ClusterState()
        for draft in (decision.draft for decision in self.disk.rows):
            for event in draft.events:
                apply(self.state, self.state.seq + 1, draft.epoch, draft.facts.now, event)

    # Time

    def _set_timer(self) -> None:
        deadline = self.core.next_deadline()
        if deadline < self._timer_at:
            self._timer_at = deadline
            self.after(max(0.0, deadline - self.world.now), self._tick, deadline)

    def _tick(self, at: float) -> None:
        if at != self._timer_at:
            return
        self._timer_at = float("inf")
        if self.world.now >= self.core.next_deadline():
            self._input(io.Tick())
        else:
            self._set_timer()
