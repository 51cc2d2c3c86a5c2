"""The worker: carries out `plan` for its node. It waits for nothing; each runner has its own supervisor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from actors import orders
from actors import plan as p
from actors.actor import Actor
from actors.address import Address, Terminated
from actors.adoption import remember
from actors.clock import Timer
from actors.deferred import Deferred
from actors.downloader import Fetch
from actors.refusal import MailboxFull, Rejected, Stopped
from actors.replica import Paths, fold, follow
from actors.reporter import Reporter, SayAgain
from actors.runner_supervisor import Order, RunnerSupervisor, ShutDown
from actors.settings import Settings
from actors.streams import PromptFor, PromptShelf, TokenHub
from actors.supervision import AddChild, ChildSpec
from actors.worker_reports import WorkerReports
from engines import wire
from engines.processes import kill_orphan
from events import catalogue as ev
from events import commands as cmd
from events import status as st
from events.base import Command
from events.feed import CommitFeed
from events.record import Committed
from events.values import NO_TOKENS, Cause, Placement
from projections.state import Runner, Task

logger = logging.getLogger("cuebook.worker")

SHUTDOWN_S = 15.0
PROMPT_WAIT_S = 10.0
"""Seconds that a task waits for its prompt from the node that its client is connected to."""
FETCH_AGAIN_S = 1.0


class _Wake(NamedTuple):
    """A deadline of the plan is due."""


class _FetchLost(NamedTuple):
    """The downloader was not there to take an order."""

    model_id: str


class _Refused(NamedTuple):
    """The master has no use for a runner that was offered. One that it takes comes back with the log."""

    runner_id: str


class _Rewound(NamedTuple):
    """The log went back to a fork: the state is another one."""


class _Spawned(NamedTuple):
    """A supervisor is up, or could not start."""

    runner_id: str
    instance_id: str
    placement: Placement
    answer: Deferred[Address]


class Worker(Actor):
    """One for each node. Its state follows the log; what it did already is in its `plan.LocalView`."""

    def __init__(
        self,
        node_id: str,
        incarnation: str,
        settings: Settings,
        paths: Paths,
        feed: CommitFeed,
        reporter: Reporter,
        runners: Address,
        downloader: Address,
        telemetry: Address,
        shelf: PromptShelf,
        hub: TokenHub,
    ) -> None:
        super().__init__()
        self._node_id = node_id
        self._incarnation = incarnation
        self._settings = settings
        self._paths = paths
        self._feed = feed
        self._reporter = reporter
        self._reports = WorkerReports(node_id, settings.policy, reporter)
        self._runners = runners
        self._downloader = downloader
        self._telemetry = telemetry
        self._shelf = shelf
        self._hub = hub
        self._view = p.LocalView(node_id=node_id)
        self._supervisors: dict[str, Address] = {}
        self._timer: Timer | None = None
        self._awaited: dict[str, float] = {}

    def started(self) -> None:
        """Rebuild the state, end what an earlier incarnation left running, and follow the log."""
        self._state, self._follower = follow(
            self._paths, self._feed, self.mailbox.put_system, lambda _: self.mailbox.put_system(_Rewound())
        )
        self._hub.on_prompt(self._prompt_arrived)
        for runner in self._state.runners.values():
            if runner.node_id == self._node_id and runner.pid:
                kill_orphan(runner.pid, runner.process_started_at)
        self.mailbox.put_system(_Wake())

    def stopping(self) -> None:
        """Leave the feed. The supervisors have a supervisor of their own and stop with it."""
        self._follower.close()

    def receive(self, message: Any) -> None:
        """Take decisions of the feed, deaths of supervisors and timers; then do what is due."""
        match message:
            case Terminated():
                self._supervisor_ended(message)
            case _Spawned():
                self._spawned(message)
            case _FetchLost():
                self._view.fetching.discard(message.model_id)
            case _Wake():
                pass
            case _Refused():
                if message.runner_id in self._view.runners:
                    self._view.runners[message.runner_id].refused = True  # until the log has it again
            case _Rewound():
                self._rewound()
            case _:
                self._learn(message)
        self._act()

    def _rewound(self) -> None:
        """Start from the log as it is now; what this node has and the log does not know is said again."""
        self._state = self._follower.load()
        for task_id in [each for each in self._view.dispatched if each not in self._state.tasks]:
            self._drop(task_id)
            self._hub.unroute(task_id)
        self._telemetry.tell(SayAgain())
        self._downloader.tell(SayAgain())
        for address in self._supervisors.values():
            address.tell(SayAgain())
        for runner in self._state.runners.values():
            if runner.runner_id in self._view.spent - self._view.runners.keys():
                self._report_gone(runner)

    def _learn(self, committed: Sequence[Committed]) -> None:
        if self._follower.take():
            fold(self._state, committed)
        view = self._view
        for decision in committed:
            self._note_end(decision.command)
            for recorded in decision.events:
                event = recorded.event
                if isinstance(event, ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled):
                    self._ended(event)
                elif isinstance(event, ev.NodeStopped) and event.incarnation == self._incarnation:
                    if not event.clean:  # it was thought dead, and is not
                        self._telemetry.tell(SayAgain())
                elif isinstance(event, ev.ModelStored | ev.DownloadFailed):
                    view.fetching.discard(event.model_id)
        view.spent = {r for r in view.spent if r in self._state.runners or r in self._supervisors}

    def _act(self) -> None:
        """Do what is due, once the log knows this start of the node: until then it tells of the last one."""
        self._view.now = self.clock.now()
        remember(self._state, self._view)
        node = self._state.nodes.get(self._node_id)
        if node is None or not node.up or node.incarnation != self._incarnation:
            return
        for step in p.plan(self._state, self._view):
            _DO[type(step)](self, step)
        self._sleep()

    def _sleep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = p.next_deadline(self._state, self._view)
        if due is not None:
            self._timer = self.after(max(0.0, due - self.clock.now()), _Wake())

    def _note_end(self, command: Command) -> None:
        """A runner whose own supervisor has told its end is not alive, though the notice is still to come."""
        if isinstance(command, cmd.ReportRunner) and isinstance(command.status, st.Failed | st.Shutdown):
            local = self._view.runners.get(command.runner_id)
            if local is not None:
                local.ready = False

    def _ended(self, event: ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled) -> None:
        if isinstance(event, ev.TaskFailed):
            self._drop(event.task_id)  # its runner may not know: the node was thought dead, say
        self._view.dispatched.pop(event.task_id, None)
        self._view.cancelling.discard(event.task_id)
        self._hub.unroute(event.task_id)
        self._awaited.pop(event.task_id, None)

    def _drop(self, task_id: str) -> None:
        """Nobody waits for what a runner may still be computing."""
        runner_id = self._view.dispatched.pop(task_id, None)
        self._view.cancelling.discard(task_id)
        if runner_id is not None:
            self._order(runner_id, wire.Cancel(task_id=task_id))

    # Steps

    def cancel_task(self, step: p.CancelTask) -> None:
        """Tell the runner."""
        self._view.cancelling.add(step.task.task_id)
        self._order(step.task.runner_id, wire.Cancel(task_id=step.task.task_id))

    def abandon_task(self, step: p.AbandonTask) -> None:
        """No runner has it: it has ended as of now."""
        self._view.cancelling.add(step.task.task_id)
        self._shelf.take(step.task.request_id, step.task.index)
        self._reports.task(step.task.task_id, cmd.Stopped(usage=NO_TOKENS))

    def shut_down_runner(self, step: p.ShutDownRunner) -> None:
        """Tell its supervisor."""
        self._view.runners[step.runner_id].stopping = True
        self._tell(step.runner_id, ShutDown())

    def offer_runner(self, step: p.OfferRunner) -> None:
        """Let the master decide whether it may carry on; without an answer it lives on."""
        local = self._view.runners[step.runner_id]
        local.offered = True
        self._reports.adoptable(local, lambda: self.mailbox.put_system(_Refused(step.runner_id)))

    def report_lost(self, step: p.ReportLost) -> None:
        """Its supervisor has crashed, or belonged to a worker that has."""
        self._report_gone(step.runner)

    def _report_gone(self, runner: Runner) -> None:
        kill_orphan(runner.pid, runner.process_started_at)
        cause = Cause(
            code="supervisor_lost",
            message=f"{runner.runner_id} lost its supervisor and was stopped.",
        )
        self._reports.runner(runner.runner_id, st.Failed(phase=type(runner.status).__name__, cause=cause))

    def report_never_spawned(self, step: p.ReportNeverSpawned) -> None:
        """Its placement was void before it had a process."""
        self._view.spent.add(step.runner_id)
        self._reports.runner(step.runner_id, st.Shutdown())

    def create_runner(self, step: p.CreateRunner) -> None:
        """Start a supervisor, which starts the process; the answer comes as `_Spawned`."""
        runner_id = step.rank.runner_id
        self._view.spent.add(runner_id)

        def start() -> RunnerSupervisor:
            return RunnerSupervisor(
                step.instance_id,
                step.placement,
                step.rank,
                self._settings,
                self._node_id,
                self._reporter,
                self._hub,
            )

        spec = ChildSpec(runner_id, start, restart="temporary", shutdown=SHUTDOWN_S)
        answer = self._runners.ask_future(AddChild(spec))
        spawned = partial(_Spawned, runner_id, step.instance_id, step.placement)
        answer.add_done_callback(lambda done: self.mailbox.put_system(spawned(done)))

    def fetch_model(self, step: p.FetchModel) -> None:
        """Let the downloader bring the files; it reports by itself. Order again where it was not there."""
        model_id = step.model.model_id
        self._view.fetching.add(model_id)

        def lost() -> None:
            self.mailbox.put_system(_FetchLost(model_id))

        def taken(answer: Deferred[None]) -> None:
            if answer.error is not None:
                self.clock.call_later(FETCH_AGAIN_S, lost)

        self._downloader.ask_future(Fetch(step.model)).add_done_callback(taken)

    def connect_runner(self, step: p.ConnectRunner) -> None:
        """Let it join the ranks of its group."""
        self._view.runners[step.rank.runner_id].connecting = True
        self._order(step.rank.runner_id, orders.connect(step, self._settings))

    def load_model(self, step: p.LoadModel) -> None:
        """Order the load of the rank's shard."""
        local = self._view.runners[step.runner_id]
        local.loading = True
        local.told(step)
        self._order(step.runner_id, orders.load(step, self._settings, step.model.paths[self._node_id]))

    def warm_up_runner(self, step: p.WarmUpRunner) -> None:
        """Order the first forward pass."""
        self._view.runners[step.runner_id].warming = True
        self._order(step.runner_id, wire.WarmUp())

    def move_experts(self, step: p.StageExperts | p.ApplyExperts | p.DropStaging) -> None:
        """Tell rank 0, which tells the others."""
        self._view.runners[step.runner_id].told(step)
        self._order(step.runner_id, orders.move(step))

    def dispatch(self, step: p.Dispatch) -> None:
        """Hand the prompt to the runner; without its prompt a task can't be served."""
        task = step.task
        prompt = self._shelf.take(task.request_id, task.index)
        if prompt is None and self._may_come(task):
            return
        self._view.dispatched[task.task_id] = task.runner_id
        if prompt is None:
            cause = Cause(
                code="prompt_lost",
                message="The prompt was lost when a part of the node restarted. Send the request again.",
            )
            self._reports.task(task.task_id, cmd.Broken(cause=cause, usage=NO_TOKENS))
        else:
            self._hub.route(task.task_id, task.api_node)
            self._order(task.runner_id, orders.generate(task, prompt))

    def _may_come(self, task: Task) -> bool:
        """A prompt of another node may be on its way still, for a while."""
        if task.api_node == self._node_id:
            return False
        now = self.clock.monotonic()
        if task.task_id not in self._awaited:
            self._awaited[task.task_id] = now + PROMPT_WAIT_S
            self.after(PROMPT_WAIT_S, _Wake())
        return now < self._awaited[task.task_id]

    def _prompt_arrived(self, message: PromptFor) -> None:
        """On the transport's thread."""
        self._shelf.put_strange(message, self.clock.monotonic())
        self.mailbox.put_system(_Wake())

    # Runners

    def _spawned(self, message: _Spawned) -> None:
        runner_id, answer = message.runner_id, message.answer
        if answer.error is None:
            address = answer.get()
            self._supervisors[runner_id] = address
            self._view.runners[runner_id] = p.LocalRunner(message.instance_id, message.placement)
            self.watch(address)
            return
        cause = Cause(code="spawn_failed", message=f"{runner_id} could not be started: {answer.error}")
        if isinstance(answer.error, Rejected):
            cause = Cause(code="spawn_failed", message=answer.error.cause.message)
        self._reports.runner(runner_id, st.Failed(phase="Spawning", cause=cause))

    def _supervisor_ended(self, notice: Terminated) -> None:
        self._supervisors.pop(notice.actor, None)
        self._view.runners.pop(notice.actor, None)
        if notice.cause is not None:
            cause = Cause(code="supervisor_lost", message=f"Its supervisor crashed: {notice.cause}")
            self._reports.runner(notice.actor, st.Failed(phase="unknown", cause=cause))

    def _order(self, runner_id: str, message: wire.ToRunner) -> None:
        self._tell(runner_id, Order(message))

    def _tell(self, runner_id: str, message: Order | ShutDown) -> None:
        address = self._supervisors.get(runner_id)
        if address is None:
            return
        try:
            address.tell(message)
        except (MailboxFull, Stopped) as error:
            logger.warning("%s did not take %s: %s", runner_id, message, error)


_DO: dict[type[p.Step], Callable[[Worker, Any], None]] = {
    p.CancelTask: Worker.cancel_task,
    p.AbandonTask: Worker.abandon_task,
    p.ShutDownRunner: Worker.shut_down_runner,
    p.OfferRunner: Worker.offer_runner,
    p.ReportLost: Worker.report_lost,
    p.ReportNeverSpawned: Worker.report_never_spawned,
    p.CreateRunner: Worker.create_runner,
    p.FetchModel: Worker.fetch_model,
    p.ConnectRunner: Worker.connect_runner,
    p.LoadModel: Worker.load_model,
    p.WarmUpRunner: Worker.warm_up_runner,
    p.StageExperts: Worker.move_experts,
    p.ApplyExperts: Worker.move_experts,
    p.DropStaging: Worker.move_experts,
    p.Dispatch: Worker.dispatch,
}
