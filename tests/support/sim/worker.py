"""The worker of a node: carries out the real `plan` with simulated runners, and reports in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from support.cards import SMALL
from support.sim.disk import Branch
from support.sim.master import POLICY, Answer

from actors import plan as p
from events import catalogue as ev
from events import commands as cmd
from events import status as st
from events.base import Event, Report
from events.values import Cause, Device, Diagnostics, EngineReport, ModelSource, Timings, Usage

if TYPE_CHECKING:
    from support.sim.node import Node

GIB = 1 << 30
REPORT_AGAIN_S = 0.5
CRASH_SHARE = 0.02
"""Of the tasks, those whose runner dies of them."""

_NO_TOKENS = Usage(prompt_tokens=0, completion_tokens=0)
_KILLED = Cause(code="runner_killed", message="The runner was killed by signal SIGKILL.")
_SOURCE = ModelSource(kind="hub", location="some/model", revision="main")


class Worker:
    """Lives as long as the process: its runners end with it, what was not answered is forgotten."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._view = p.LocalView(node_id=node.node_id)
        self._reports: deque[Report] = deque()
        self._waiting_since = -1.0
        self._numbers = 0
        self._acting = False
        self._last_words: dict[str, st.RunnerStatus] = {}
        self._met: set[str] = set()
        self._has_model = node.world.random.random() < 0.7

    @property
    def has_reports(self) -> bool:
        """True while there is something to tell the master."""
        return bool(self._reports)

    # What the log says

    def learn(self, event: Event) -> None:
        """Take note of an event of the log."""
        view = self._view
        if isinstance(event, ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled):
            view.dispatched.pop(event.task_id, None)
            view.cancelling.discard(event.task_id)
        elif isinstance(event, ev.ModelStored | ev.DownloadFailed):
            view.fetching.discard(event.model_id)
        elif isinstance(event, ev.NodeStopped) and self._is_this(event):
            self._node.after(0.0, self.say_again)

    def _is_this(self, event: ev.NodeStopped) -> bool:
        return (event.node_id, event.incarnation) == (self._node.node_id, self._node.incarnation)

    def rewound(self, branch: Branch) -> None:
        """The state is another one: tell whose decisions were lost, and forget the tasks that never were."""
        tasks = self._node.state.tasks
        for task_id in self._view.dispatched.keys() - tasks.keys():
            del self._view.dispatched[task_id]
        self._report(
            cmd.ReportBranch(
                command_id=self._fresh(),
                origin=self._node.node_id,
                fork=branch.fork,
                winner=str(branch.winner),
                reason=branch.reason,
                command_ids=[decision.command_id for decision in branch.decisions],
            )
        )

    def act_soon(self) -> None:
        """The state has changed: look what is to be done."""
        if not self._acting:
            self._acting = True
            self._node.after(0.0, self._act)

    def _act(self) -> None:
        self._acting = False
        node, view = self._node, self._view
        known = node.state.nodes.get(node.node_id)
        if known is None or not known.up or known.incarnation != node.incarnation:
            return
        view.spent = {r for r in view.spent if r in node.state.runners or r in view.runners}
        view.now = node.wall()
        for step in p.plan(node.state, view):
            _DO[type(step)](self, step)
        self._gather()

    # Reports: one at a time, each until it is answered

    def say_again(self) -> None:
        """To a master that may not know: this node, its model, its runners."""
        node = self._node
        self._report(_node_started(node, self._fresh()))
        if self._has_model:
            self._report_model()
        for runner_id, status in list(self._last_words.items()):
            if runner_id in node.state.runners or runner_id in self._view.runners:
                self._report_runner(runner_id, status)
            else:
                del self._last_words[runner_id]

    def _report(self, report: Report) -> None:
        self._reports.append(report)
        if len(self._reports) == 1:
            self._send()

    def _send(self) -> None:
        if self._reports:
            report = self._reports[0]
            self._node.ask(report, lambda answer: self._answered(report, answer))

    def _answered(self, report: Report, answer: Answer | None) -> None:
        if not self._reports or self._reports[0] is not report:
            return
        if answer is None:
            self._node.after(REPORT_AGAIN_S, self._send)
            return
        self._reports.popleft()
        if isinstance(report, cmd.ReportAdoptable):
            self._offered(report.placement.ranks[0].runner_id)
        self._node.after(0.0, self._send)

    def _fresh(self) -> str:
        self._numbers += 1
        return f"report-{self._node.node_id}-{self._node.incarnation}-{self._numbers}"

    def _report_runner(self, runner_id: str, status: st.RunnerStatus) -> None:
        self._last_words[runner_id] = status
        self._report(
            cmd.ReportRunner(
                command_id=self._fresh(),
                origin=self._node.node_id,
                runner_id=runner_id,
                status=status,
                policy=POLICY,
            )
        )

    def _report_task(self, task_id: str, outcome: cmd.Finished | cmd.Broken | cmd.Stopped) -> None:
        self._report(
            cmd.ReportTask(
                command_id=self._fresh(), origin=self._node.node_id, task_id=task_id, outcome=outcome
            )
        )

    def _report_model(self) -> None:
        self._report(
            cmd.ReportModel(
                command_id=self._fresh(),
                origin=self._node.node_id,
                card=SMALL,
                source=_SOURCE,
                path="/models/small" if self._has_model else "",
                size_bytes=SMALL.weight_bytes,
            )
        )

    # Steps

    def cancel_task(self, step: p.CancelTask) -> None:
        self._view.cancelling.add(step.task.task_id)
        self._later(0.05, self._stopped, step.task.task_id)

    def _stopped(self, task_id: str) -> None:
        if task_id in self._view.dispatched:
            self._report_task(task_id, cmd.Stopped(usage=_NO_TOKENS))

    def abandon_task(self, step: p.AbandonTask) -> None:
        self._view.cancelling.add(step.task.task_id)
        self._report_task(step.task.task_id, cmd.Stopped(usage=_NO_TOKENS))

    def shut_down_runner(self, step: p.ShutDownRunner) -> None:
        self._node.checks.shut_down(step.runner_id, self._node.state)
        self._view.runners[step.runner_id].stopping = True
        self._later(0.1, self._ended, step.runner_id, st.Shutdown())

    def offer_runner(self, step: p.OfferRunner) -> None:
        local = self._view.runners[step.runner_id]
        local.offered = True
        self._report(
            cmd.ReportAdoptable(
                command_id=self._fresh(),
                origin=self._node.node_id,
                instance_id=local.instance_id,
                placement=local.placement,
            )
        )

    def _offered(self, runner_id: str) -> None:
        if runner_id in self._view.runners:
            self._view.runners[runner_id].refused = True
            self.act_soon()

    def report_lost(self, step: p.ReportLost) -> None:
        phase = type(step.runner.status).__name__
        self._report_runner(step.runner.runner_id, st.Failed(phase=phase, cause=_KILLED))

    def report_never_spawned(self, step: p.ReportNeverSpawned) -> None:
        self._view.spent.add(step.runner_id)
        self._report_runner(step.runner_id, st.Shutdown())

    def create_runner(self, step: p.CreateRunner) -> None:
        self._view.spent.add(step.rank.runner_id)
        self._later(0.3, self._spawned, step)

    def _spawned(self, step: p.CreateRunner) -> None:
        runner_id = step.rank.runner_id
        self._view.runners[runner_id] = p.LocalRunner(step.instance_id, step.placement)
        self._report_runner(runner_id, st.Idle(pid=self._numbers, started_at=self._node.wall()))
        self.act_soon()

    def fetch_model(self, step: p.FetchModel) -> None:
        model = step.model
        self._view.fetching.add(model.model_id)
        self._report_download(model.model_id, 0, None)
        if self._node.world.random.random() < 0.2:
            cause = Cause(code="hub_unreachable", message="The hub did not answer.")
            self._later(0.5, self._report_download, model.model_id, 0, cause)
        else:
            self._later(1.0, self._fetched)

    def _fetched(self) -> None:
        self._has_model = True
        self._report_model()

    def _report_download(self, model_id: str, done: int, cause: Cause | None) -> None:
        self._report(
            cmd.ReportDownload(
                command_id=self._fresh(),
                origin=self._node.node_id,
                model_id=model_id,
                done_bytes=done,
                total_bytes=SMALL.weight_bytes,
                cause=cause,
                retryable=True,
                policy=POLICY,
            )
        )

    def connect_runner(self, step: p.ConnectRunner) -> None:
        self._view.runners[step.rank.runner_id].connecting = True
        self._report_runner(step.rank.runner_id, st.Connecting())

    def _gather(self) -> None:
        """The ranks of a group meet once all of them are at it."""
        for runner_id, local in self._view.runners.items():
            ranks = [self._node.state.runners.get(rank.runner_id) for rank in local.placement.ranks]
            meets = all(r is not None and isinstance(r.status, st.Connecting | st.Connected) for r in ranks)
            if local.connecting and meets and runner_id not in self._met:
                self._met.add(runner_id)
                self._later(0.1, self._progress, runner_id, st.Connected())

    def load_model(self, step: p.LoadModel) -> None:
        self._view.runners[step.runner_id].loading = True
        self._report_runner(step.runner_id, st.Loading(layers=0, total=30))
        self._later(0.5, self._progress, step.runner_id, st.Loaded())

    def warm_up_runner(self, step: p.WarmUpRunner) -> None:
        self._view.runners[step.runner_id].warming = True
        self._report_runner(step.runner_id, st.WarmingUp())
        self._later(0.2, self._progress, step.runner_id, st.Ready())

    def dispatch(self, step: p.Dispatch) -> None:
        """The prompt is there once: a task that comes again, after a branch was lost, has none."""
        task = step.task
        self._view.dispatched[task.task_id] = task.runner_id
        if task.task_id in self._met:
            cause = Cause(code="prompt_lost", message="The prompt was lost.")
            self._report_task(task.task_id, cmd.Broken(cause=cause, usage=_NO_TOKENS))
            return
        self._met.add(task.task_id)
        if self._node.world.random.random() < CRASH_SHARE:
            self._later(0.5, self._ended, task.runner_id, st.Failed(phase="Ready", cause=_KILLED))
        else:
            self._later(1.0, self._finished, task.task_id, task.runner_id)

    def _finished(self, task_id: str, runner_id: str) -> None:
        if self._view.dispatched.get(task_id) == runner_id and runner_id in self._view.runners:
            usage = Usage(prompt_tokens=10, completion_tokens=20)
            timings = Timings(queued_s=0.0, prefill_s=0.1, decode_s=0.5)
            self._report_task(task_id, cmd.Finished(finish_reason="stop", usage=usage, timings=timings))

    # Runners

    def _progress(self, runner_id: str, status: st.RunnerStatus) -> None:
        if runner_id in self._view.runners:
            self._view.runners[runner_id].ready |= isinstance(status, st.Ready)
            self._report_runner(runner_id, status)

    def _ended(self, runner_id: str, status: st.Failed | st.Shutdown) -> None:
        if self._view.runners.pop(runner_id, None) is not None:
            if isinstance(status, st.Failed):
                status = st.Failed(
                    phase=status.phase, cause=status.cause, diagnostics=Diagnostics(signal="SIGKILL")
                )
            self._report_runner(runner_id, status)
            self.act_soon()

    def _later(self, mean: float, action: Callable[..., None], *arguments: Any) -> None:
        self._node.after(self._node.world.between(0.5, 1.5) * mean, action, *arguments)


def _node_started(node: Node, command_id: str) -> Report:
    device = Device(device_id="cpu:0", kind="cpu", name="Some CPU", memory_bytes=16 * GIB)
    engine = EngineReport(
        engine="mlx", version="0.32.0", ok=True, detail="", device_ids=["cpu:0"], dtype="float32"
    )
    return cmd.ReportNodeStarted(
        command_id=command_id,
        origin=node.node_id,
        incarnation=node.incarnation,
        name=node.node_id,
        version="0.1.0",
        pid=node.starts,
        platform="Linux x86_64",
        api_url=f"http://{node.node_id}:52415",
        host=node.node_id,
        devices=[device],
        engines=[engine],
        memory_total=16 * GIB,
        memory_available=14 * GIB,
        policy=POLICY,
    )


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
    p.Dispatch: Worker.dispatch,
}
