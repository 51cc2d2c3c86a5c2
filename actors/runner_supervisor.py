"""The runner supervisor: one for each runner process. Spawn, orders, deadlines, diagnosis, exit.

Every phase has a deadline on progress: a runner that says nothing for too long, hung or stopped, is killed
and its end reported with the phase. Tokens pass on the reader thread, around the mailbox.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.clock import Timer
from actors.expert_reports import ExpertWord, report_of
from actors.reporter import Reporter, SayAgain
from actors.runner_watch import Outbox, Watch
from actors.settings import Settings
from actors.streams import TokenHub
from engines import wire
from engines.processes import StderrTail, diagnose, spawn_runner
from engines.registry import ENGINES
from engines.wire import FromRunner, ToRunner
from events import commands as cmd
from events import status as st
from events.experts import EplbSettings
from events.ids import fresh
from events.values import NO_TOKENS, Cause, Placement, Rank

STOP_GRACE_S = 5.0
"""Seconds that a runner has to end by itself when told to, or after it has said that it failed."""
GB = 1e9

logger = logging.getLogger("cuebook.runner")


class Order(NamedTuple):
    """A message for the runner."""

    message: ToRunner


class ShutDown(NamedTuple):
    """Stop the runner for good."""


class _Unheard(NamedTuple):
    """What the runner says can't be understood, or not be passed on."""

    error: Exception


class _Exited(NamedTuple):
    """The runner's end of the channel is closed: it has ended, or is about to."""


class _Check(NamedTuple):
    """Look whether the deadline has passed."""


class _Kill(NamedTuple):
    """The grace is over."""


class RunnerSupervisor(Actor):
    """Owns one runner process. It ends when the process has ended and that is reported."""

    def __init__(
        self,
        instance_id: str,
        placement: Placement,
        rank: Rank,
        settings: Settings,
        node_id: str,
        reporter: Reporter,
        hub: TokenHub,
    ) -> None:
        super().__init__()
        self.runner_id = rank.runner_id
        self._instance_id = instance_id
        self._placement = placement
        self._eplb = placement.eplb or EplbSettings()
        self._settings = settings
        self._node_id = node_id
        self._reporter = reporter
        self._hub = hub
        self._watch = Watch()
        self._status: st.RunnerStatus = st.Spawning()
        self._idle: st.Idle | None = None
        self._failure: st.Failed | None = None
        self._told_to_stop = False
        self._reported_end = False
        self._timer: Timer | None = None

    def started(self) -> None:
        """Start the process and the threads that listen to it."""
        engine = ENGINES[self._placement.engine]
        threads = self._settings.threads or os.cpu_count() or 1
        self._process, self._channel = spawn_runner(engine.environment(threads))
        assert self._process.stderr is not None  # spawn_runner makes it a pipe
        self._stderr = StderrTail(self._process.stderr, self.runner_id)
        self._outbox = Outbox(self._channel, self.runner_id)
        threading.Thread(target=self._read, name=f"{self.runner_id} reader", daemon=True).start()
        self._begin("spawn", self._settings.start_timeout_s)

    def receive(self, message: Any) -> None:
        """Handle an order of the worker, a word of the runner, or a timer."""
        match message:
            case Order():
                self._order(message.message)
            case ShutDown():
                self._shut_down()
            case SayAgain():
                self._say_again()
            case wire.StatusIs():
                self._status_is(message.status)
            case wire.TaskDone() | wire.TaskBroken() | wire.TaskDropped():
                self._task_ended(message)
            case wire.ExpertLoad() | wire.LayerStaged() | wire.LayerApplied():
                self._tell_of_experts(message)
            case _Check():
                self._check()
            case _Kill():
                self._process.kill()
            case _Unheard():
                self._unheard(message.error)
            case _Exited():
                self._exited()
            case _:
                raise TypeError(f"a runner supervisor takes no {type(message).__name__}")

    def stopping(self) -> None:
        """Never leave a process behind, whatever ended this actor."""
        if not self._reported_end:
            self._outbox.put(self._channel.pack(wire.Stop()))
            self._wait_or_kill()
        self._outbox.close()
        self._channel.close()

    # Orders

    def _order(self, message: ToRunner) -> None:
        try:
            frame = self._channel.pack(message)
        except (OverflowError, TypeError, ValueError) as error:
            self._unsendable(message, error)
            return
        match message:
            case wire.Load():
                gigabytes = message.card.weight_bytes / GB
                limit = self._settings.load_timeout_s + self._settings.load_timeout_s_per_gb * gigabytes
                self._begin("load", limit)
            case wire.Connect():
                self._begin("connect", self._settings.connect_timeout_s + STOP_GRACE_S)
            case wire.WarmUp():
                self._begin("warm-up", self._settings.warm_up_timeout_s)
            case wire.Generate():
                self._watch.dispatched(message.task_id, self.clock.monotonic())
                self._arm()
            case wire.StageLayer():
                self._move(self._eplb.stage_timeout_s)
            case wire.ApplyLayer():
                self._move(self._eplb.apply_timeout_s)
            case _:
                pass
        self._outbox.put(frame)

    def _move(self, limit: float) -> None:
        """The decider gives up what takes too long; a runner that hangs beyond that is killed."""
        self._watch.moves(limit + STOP_GRACE_S, self.clock.monotonic())
        self._arm()

    def _unsendable(self, message: ToRunner, error: Exception) -> None:
        """A prompt has what no message can carry, such as a number beyond 64 bits: only its task breaks."""
        if not isinstance(message, wire.Generate):
            raise error
        cause = Cause(code="invalid_prompt", message=f"The prompt can't be passed to the model: {error}.")
        self._task_ended(wire.TaskBroken(task_id=message.task_id, cause=cause, usage=NO_TOKENS))

    def _shut_down(self) -> None:
        if self._told_to_stop:
            return
        self._told_to_stop = True
        self._watch.phase = ""
        self._report(st.ShuttingDown())
        self._outbox.put(self._channel.pack(wire.Stop()))
        self.after(STOP_GRACE_S, _Kill())

    # What the runner says

    def _read(self) -> None:
        """On the reader thread: pass tokens on at once, everything else through the mailbox."""
        try:
            for message in self._channel.receive():
                if isinstance(message, wire.Progress):
                    self._watch.progressed(message, self.clock.monotonic())
                    if message.chunks:
                        self._hub.publish(message)
                elif isinstance(message, wire.Admitted):
                    self._hub.publish(message)
                elif isinstance(message, wire.TaskDone):
                    self._hub.publish(message)
                    self.mailbox.put_system(message)
                else:
                    self.mailbox.put_system(message)
        except Exception as error:  # without this thread its end would never be known
            logger.exception("%s can't be heard any more and is stopped", self.runner_id)
            self.mailbox.put_system(_Unheard(error))
            self._process.kill()
        self.mailbox.put_system(_Exited())

    def _unheard(self, error: Exception) -> None:
        message = f"{self.runner_id} was killed, because what it says can't be followed: {error}"
        cause = Cause(code="runner_unheard", message=message)
        self._failure = self._failure or st.Failed(phase=type(self._status).__name__, cause=cause)

    def _say_again(self) -> None:
        """The log has lost what was reported: the start of the process and how far it has come."""
        if self._failure is None and not self._told_to_stop:
            for status in (self._idle, self._status):
                if status is not None and not isinstance(status, st.Spawning):
                    self._report(status)

    def _status_is(self, status: st.RunnerStatus) -> None:
        self._status = status
        match status:
            case st.Failed():
                self._failure = status
                self.after(STOP_GRACE_S, _Kill())
                return
            case _ if self._told_to_stop:
                return
            case st.Shutdown() | st.ShuttingDown():
                return
            case st.Idle():
                self._idle = status
                self._begin("", 0.0)
            case st.Connected() | st.Loaded():
                self._begin("", 0.0)
            case st.Ready():
                self._begin("serve", 0.0)
            case _:
                self._watch.progress_at = self.clock.monotonic()
        self._report(status)

    def _tell_of_experts(self, message: ExpertWord) -> None:
        if not isinstance(message, wire.ExpertLoad):
            self._watch.moved(self.clock.monotonic())
        policy = self._settings.policy
        self._reporter.send(report_of(message, self._node_id, self._instance_id, self._placement, policy))

    def _task_ended(self, message: FromRunner) -> None:
        match message:
            case wire.TaskDone():
                outcome = cmd.Finished(
                    finish_reason=message.finish_reason, usage=message.usage, timings=message.timings
                )
            case wire.TaskBroken():
                outcome = cmd.Broken(cause=message.cause, usage=message.usage)
            case wire.TaskDropped():
                outcome = cmd.Stopped(usage=message.usage)
            case _:
                return
        self._watch.ended(message.task_id)
        report = cmd.ReportTask(
            command_id=fresh("report"), origin=self._node_id, task_id=message.task_id, outcome=outcome
        )
        self._reporter.send(report)

    # Deadlines

    def _begin(self, phase: str, limit: float) -> None:
        self._watch.begin(phase, limit, self.clock.monotonic())
        self._arm()

    def _arm(self) -> None:
        """Look again when the deadline is due, or may be; no timer where nothing is awaited."""
        if self._limit() <= 0:
            return
        wait = self._due_in()
        if self._watch.phase == "serve":
            # A prefill becomes a decode, with its shorter limit, without a word to this actor.
            wait = min(wait, self._settings.decode_timeout_s)
        if self._timer is not None and self._timer.due <= self.clock.monotonic() + wait:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.after(wait, _Check())

    def _check(self) -> None:
        self._timer = None
        limit = self._limit()
        if limit > 0 and self._due_in() <= 0:
            self._miss(limit)
        else:
            self._arm()

    def _limit(self) -> float:
        """Seconds that may pass without a word now; 0 where nothing is awaited."""
        if self._watch.phase != "serve":
            return self._watch.limit if self._watch.phase else 0.0
        return self._watch.serving_limit(self._settings.prefill_timeout_s, self._settings.decode_timeout_s)

    def _due_in(self) -> float:
        return self._watch.progress_at + self._limit() - self.clock.monotonic()

    def _miss(self, limit: float) -> None:
        phase = self._watch.name()
        self._failure = st.Failed(
            phase=type(self._status).__name__,
            cause=Cause(
                code="deadline_missed",
                message=f"{self.runner_id} made no progress in {phase} for {limit:g} s and was killed.",
                detail={"phase": phase, "limit_s": limit},
            ),
        )
        self._watch.phase = ""
        self._process.kill()

    # The end

    def _wait_or_kill(self) -> None:
        try:
            self._process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _exited(self) -> None:
        self._wait_or_kill()
        self._report(self._end_status())
        self._reported_end = True
        self.stop()

    def _end_status(self) -> st.RunnerStatus:
        cause, diagnostics = diagnose(self._process.returncode, self._stderr.lines())
        if self._failure is not None:
            return st.Failed(phase=self._failure.phase, cause=self._failure.cause, diagnostics=diagnostics)
        if self._told_to_stop:
            return st.Shutdown()
        return st.Failed(phase=type(self._status).__name__, cause=cause, diagnostics=diagnostics)

    def _report(self, status: st.RunnerStatus) -> None:
        self._reporter.send(
            cmd.ReportRunner(
                command_id=fresh("report"),
                origin=self._node_id,
                runner_id=self.runner_id,
                status=status,
                policy=self._settings.policy,
            )
        )
