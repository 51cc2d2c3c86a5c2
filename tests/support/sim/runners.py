"""Stands for the processes of runners, and for what the ranks of a group know of each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.reporter import Reporter, SayAgain
from actors.runner_supervisor import Order, ShutDown
from actors.settings import Settings
from actors.streams import TokenHub
from engines import wire
from events import commands as cmd
from events import status as st
from events.ids import fresh
from events.values import (
    NO_TOKENS,
    Cause,
    Diagnostics,
    Placement,
    Rank,
    Timings,
    Usage,
)

CRASH_SHARE = 0.02
"""Of the tasks, those whose runner dies of them."""
PEERS_DEATH_S = 1.0
"""Until the ranks of a group fail when one of them has died."""

_KILLED = Cause(code="runner_killed", message="The runner was killed by signal SIGKILL.")


@dataclass
class Groups:
    """Where the runners of a run meet those of their group, as real ones do over sockets."""

    present: dict[str, dict[int, SimulatedRunner]] = field(
        default_factory=dict[str, dict[int, "SimulatedRunner"]]
    )

    def enter(self, runner: SimulatedRunner, group_id: str, size: int) -> None:
        """Connected are all, once all are here."""
        group = self.present.setdefault(group_id, {})
        group[runner.rank] = runner
        if len(group) == size:
            for each in group.values():
                each.after(0.1, _Said(st.Connected()))

    def leave(self, runner: SimulatedRunner) -> None:
        """The others notice."""
        for group in self.present.values():
            if group.get(runner.rank) is runner:
                del group[runner.rank]
                for each in group.values():
                    each.after(PEERS_DEATH_S, _Dies(_GROUP_BROKEN))
                group.clear()

    def leave_all(self, node_id: str) -> None:
        """The process of a node has ended, and its runners with it."""
        here = [r for group in self.present.values() for r in group.values() if r.node_id == node_id]
        for runner in here:
            self.leave(runner)


_GROUP_BROKEN = Cause(code="group_broken", message="A rank of the group has ended.")


class _Said(NamedTuple):
    status: st.RunnerStatus


class _Dies(NamedTuple):
    cause: Cause


class _Done(NamedTuple):
    task_id: str


class _Dropped(NamedTuple):
    task_id: str


class _Exited(NamedTuple):
    status: st.Failed | st.Shutdown


class SimulatedRunner(Actor):
    """Stands for `actors.runner_supervisor.RunnerSupervisor` and its process."""

    def __init__(
        self,
        groups: Groups,
        instance_id: str,
        placement: Placement,
        rank: Rank,
        settings: Settings,
        node_id: str,
        reporter: Reporter,
        hub: TokenHub,
    ) -> None:
        super().__init__()
        self.node_id = node_id
        self.rank = rank.rank
        self._groups = groups
        self.runner_id = rank.runner_id
        self._size = len(placement.ranks)
        self._settings = settings
        self._reporter = reporter
        self._hub = hub
        self.status: st.RunnerStatus = st.Spawning()
        self._idle: st.Idle | None = None
        self._stopping = False
        self._tasks: set[str] = set()

    def started(self) -> None:
        self._pid = 1 + int(self.system.random.random() * 30_000)
        self._later(0.3, _Said(st.Idle(pid=self._pid, started_at=self.clock.now())))

    def stopping(self) -> None:
        self._groups.leave(self)

    def receive(self, message: Any) -> None:
        match message:
            case Order():
                self._order(message.message)
            case ShutDown():
                if not self._stopping:
                    self._stopping = True
                    self._report(st.ShuttingDown())
                    self._later(0.1, _Exited(st.Shutdown()))
            case SayAgain():
                self._say_again()
            case _Said(status):
                self._said(status)
            case _Dies(cause):
                self._dies(cause)
            case _Done(task_id):
                self._done(task_id)
            case _Dropped(task_id):
                if task_id in self._tasks:
                    self._tasks.discard(task_id)
                    self._report_task(task_id, cmd.Stopped(usage=NO_TOKENS))
            case _Exited(status):
                self._report(status)
                self.stop()

    def _order(self, order: wire.ToRunner) -> None:
        match order:
            case wire.Connect():
                self._said(st.Connecting())
                self.after(self._settings.connect_timeout_s, _Said(st.Connecting()))
                self._groups.enter(self, order.group.group_id, self._size)
            case wire.Load():
                self._said(st.Loading(layers=0, total=30))
                self._later(0.5, _Said(st.Loaded()))
            case wire.WarmUp():
                self._said(st.WarmingUp())
                self._later(0.2, _Said(st.Ready()))
            case wire.Generate():
                self._generate(order.task_id)
            case wire.Cancel():
                self._later(0.05, _Dropped(order.task_id))
            case _:
                pass

    def _generate(self, task_id: str) -> None:
        self._tasks.add(task_id)
        if self.system.random.random() < CRASH_SHARE:
            self._later(0.5, _Dies(_KILLED))
        else:
            self._later(1.0, _Done(task_id))

    def _done(self, task_id: str) -> None:
        if task_id not in self._tasks or self._stopping:
            return
        self._tasks.discard(task_id)
        usage = Usage(prompt_tokens=10, completion_tokens=20)
        timings = Timings(queued_s=0.0, prefill_s=0.1, decode_s=0.5)
        chunk = wire.Chunk(task_id, "text", [1])
        self._hub.publish(wire.Progress(chunks=[chunk], prefilling=[], decoding=[]))
        self._hub.publish(wire.TaskDone(task_id=task_id, finish_reason="stop", usage=usage, timings=timings))
        self._report_task(task_id, cmd.Finished(finish_reason="stop", usage=usage, timings=timings))

    def _said(self, status: st.RunnerStatus) -> None:
        if isinstance(status, st.Connecting) and isinstance(self.status, st.Connecting):
            self._dies(Cause(code="deadline_missed", message="The group did not come together."))
        elif not self._stopping and not isinstance(status, type(self.status)):
            if isinstance(status, st.Connecting) and not isinstance(self.status, st.Idle):
                return  # the deadline, and it was met
            self.status = status
            self._idle = status if isinstance(status, st.Idle) else self._idle
            self._report(status)

    def _say_again(self) -> None:
        if not self._stopping:
            for status in (self._idle, self.status):
                if status is not None and not isinstance(status, st.Spawning):
                    self._report(status)

    def _dies(self, cause: Cause) -> None:
        if not self._stopping:
            self._stopping = True
            phase = type(self.status).__name__
            signal = Diagnostics(signal="SIGKILL")
            self._later(0.01, _Exited(st.Failed(phase=phase, cause=cause, diagnostics=signal)))

    def _later(self, mean: float, message: Any) -> None:
        self.after((0.5 + self.system.random.random()) * mean, message)

    def _report(self, status: st.RunnerStatus) -> None:
        self._reporter.send(
            cmd.ReportRunner(
                command_id=fresh("report"),
                origin=self.node_id,
                runner_id=self.runner_id,
                status=status,
                policy=self._settings.policy,
            )
        )

    def _report_task(self, task_id: str, outcome: cmd.Finished | cmd.Stopped) -> None:
        self._reporter.send(
            cmd.ReportTask(command_id=fresh("report"), origin=self.node_id, task_id=task_id, outcome=outcome)
        )
