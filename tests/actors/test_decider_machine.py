"""The decider under any order of commands and reports: invariants, one end for each task, no wish lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from support.cards import CARDS, SMALL
from support.cluster import FINISHED, GIB, LIFE, NODE, POLICY, USAGE, Cluster, device, engine, node_started

from actors.deciding.instances import FINAL_CODES
from actors.refusal import Rejected
from events import catalogue as ev
from events import commands as cmd
from events import status
from events.base import Command, Event
from events.values import Cause, LinkReading, ModelSource, PlacementSettings

NODES = (NODE, "node-b")
MODELS = st.sampled_from([card.model_id for card in CARDS])
RUNS = st.sampled_from([1, 1, 1, 1, 1, 2])
"""Starts of a node: mostly the one that is known."""
TERMINAL = ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled
FAILURES = [
    status.Failed(phase="?", cause=Cause(code=code, message="It broke."))
    for code in ("runner_killed", "deadline_missed", *sorted(FINAL_CODES)[:1])
]
STATUSES = [*LIFE, status.Ready(), *FAILURES, status.ShuttingDown(), status.Shutdown()]
OUTCOMES = [FINISHED, cmd.Broken(cause=FAILURES[0].cause, usage=USAGE), cmd.Stopped(usage=USAGE)]


class Commands(RuleBasedStateMachine):
    """Sends anything to a decider, about things that are there, were there, or never were."""

    instances: Bundle[str] = Bundle("instances")
    runners: Bundle[str] = Bundle("runners")
    tasks: Bundle[str] = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self._sent = 0
        self._earlier: list[Command] = []
        self._send(node_started(NODE))
        self._model(SMALL.model_id, NODE, path="/models/small")

    @initialize(target=instances)
    def one_is_ready(self) -> str:
        return self.cluster.ready(self.cluster.place())

    def _send(self, command: Command) -> list[Event]:
        self._earlier.append(command)
        try:
            return self.cluster.do(command)
        except Rejected as refusal:
            cause = refusal.cause
        assert cause.code
        assert cause.message.endswith("."), cause.message
        return []

    def _id(self) -> str:
        self._sent += 1
        return f"command-{self._sent}"

    def _model(self, model_id: str, node_id: str, *, path: str) -> None:
        (card,) = [card for card in CARDS if card.model_id == model_id]
        source = ModelSource(kind="hub", location=f"org/{model_id}")
        self._send(
            cmd.ReportModel(
                command_id=self._id(), origin=node_id, card=card, source=source, path=path, size_bytes=1
            )
        )

    @rule(seconds=st.sampled_from([0.01, 1.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.now += seconds

    @rule(node_id=st.sampled_from(NODES), run=RUNS, two=st.booleans())
    def node_starts(self, node_id: str, run: int, two: bool) -> None:
        devices = ["cpu:0", "metal:0"] if two else ["cpu:0"]
        self._send(
            node_started(
                node_id, f"run-{run}", devices=[device(each) for each in devices], engines=[engine(devices)]
            )
        )

    @rule(node_id=st.sampled_from(NODES), run=RUNS)
    def node_stops(self, node_id: str, run: int) -> None:
        self._send(
            cmd.ReportNodeStopping(
                command_id=self._id(), origin=node_id, incarnation=f"run-{run}", reason="?", policy=POLICY
            )
        )

    @rule(node_id=st.sampled_from(NODES), run=RUNS)
    def node_is_lost(self, node_id: str, run: int) -> None:
        self._send(
            cmd.ReportNodeLost(
                command_id=self._id(),
                origin=NODE,
                node_id=node_id,
                incarnation=f"run-{run}",
                cause=FAILURES[0].cause,
                policy=POLICY,
            )
        )

    @rule(node_id=st.sampled_from(NODES), reached=st.booleans(), latency=st.sampled_from([1e-4, 1e-3, 0.1]))
    def links(self, node_id: str, reached: bool, latency: float) -> None:
        others = [other for other in NODES if other != node_id and reached]
        links = [LinkReading(node_id=other, latency_s=latency, bandwidth=1e8) for other in others]
        self._send(cmd.ReportLinks(command_id=self._id(), origin=node_id, links=links))

    @rule(back=st.integers(1, 10))
    def a_lost_runner_is_offered(self, back: int) -> None:
        """As the worker of rank 0 does: a ready runner, and its group, that the state has forgotten."""
        state = self.cluster.state
        ready = {e.instance_id for e in self.cluster.history if isinstance(e, ev.InstanceReady)}
        lost = [
            event
            for event in self.cluster.history
            if isinstance(event, ev.InstancePlaced)
            and event.instance_id in ready
            and event.placement.ranks[0].runner_id not in state.runners
        ]
        if lost:
            placed = lost[-min(back, len(lost))]
            self._send(
                cmd.ReportAdoptable(
                    command_id=self._id(),
                    origin=placed.placement.ranks[0].node_id,
                    instance_id=placed.instance_id,
                    placement=placed.placement,
                )
            )

    @rule(node_id=st.sampled_from(NODES), gib=st.sampled_from([0, 8, 15, 16]), disk=st.integers(0, 9))
    def reading(self, node_id: str, gib: int, disk: int) -> None:
        self._send(
            cmd.ReportResources(
                command_id=self._id(), origin=node_id, memory_available=gib * GIB, disk_free=disk
            )
        )

    @rule(
        model_id=MODELS,
        node_id=st.sampled_from(NODES),
        stored=st.booleans(),
    )
    def model_is_known(self, model_id: str, node_id: str, stored: bool) -> None:
        self._model(model_id, node_id, path="/models/m" if stored else "")

    @rule(model_id=MODELS, node_id=st.sampled_from(NODES))
    def model_is_gone(self, model_id: str, node_id: str) -> None:
        self._send(cmd.ReportModelGone(command_id=self._id(), origin=node_id, model_id=model_id))

    @rule(
        model_id=MODELS,
        node_id=st.sampled_from(NODES),
        done=st.integers(0, 100),
        failed=st.booleans(),
        retryable=st.booleans(),
    )
    def download(self, model_id: str, node_id: str, done: int, failed: bool, retryable: bool) -> None:
        self._send(
            cmd.ReportDownload(
                command_id=self._id(),
                origin=node_id,
                model_id=model_id,
                done_bytes=done,
                total_bytes=100,
                cause=FAILURES[0].cause if failed else None,
                retryable=retryable,
                policy=POLICY,
            )
        )

    @rule(target=instances, model_id=MODELS, batch=st.integers(0, 9), ranks=st.sampled_from([0, 0, 2, 3]))
    def place(self, model_id: str, batch: int, ranks: int) -> object:
        wanted = PlacementSettings(context=512, batch=batch, ranks=ranks)
        events = self._send(cmd.PlaceInstance(command_id=self._id(), model_id=model_id, settings=wanted))
        return events[0].subject if events else multiple()

    @rule(instance_id=instances)
    def reconcile(self, instance_id: str) -> None:
        self._send(cmd.ReconcileInstance(command_id=self._id(), instance_id=instance_id, policy=POLICY))

    @rule(instance_id=instances)
    def retry(self, instance_id: str) -> None:
        self._send(cmd.RetryInstance(command_id=self._id(), instance_id=instance_id, by="a user"))

    @rule(instance_id=instances)
    def delete(self, instance_id: str) -> None:
        self._send(cmd.DeleteInstance(command_id=self._id(), instance_id=instance_id))

    @rule(runner_id=runners, reported=st.sampled_from(STATUSES))
    def runner(self, runner_id: str, reported: status.RunnerStatus) -> None:
        self._send(
            cmd.ReportRunner(
                command_id=self._id(), origin=NODE, runner_id=runner_id, status=reported, policy=POLICY
            )
        )

    @rule(target=runners, instance_id=instances)
    def the_runner(self, instance_id: str) -> object:
        instance = self.cluster.state.instances.get(instance_id)
        placement = instance.placement if instance else None
        return multiple(*(rank.runner_id for rank in placement.ranks)) if placement else multiple()

    @rule(target=runners, instance_id=instances)
    def comes_up(self, instance_id: str) -> object:
        """A runner that does as it should, so that many runs get as far as tasks."""
        self._send(cmd.ReconcileInstance(command_id=self._id(), instance_id=instance_id, policy=POLICY))
        instance = self.cluster.state.instances.get(instance_id)
        if instance is None or instance.placement is None:
            return multiple()
        runner_ids = [rank.runner_id for rank in instance.placement.ranks]
        for runner_id in runner_ids:
            for reported in LIFE:
                self.runner(runner_id, reported)
        return multiple(*runner_ids)

    @rule(target=tasks, count=st.integers(1, 3), max_tokens=st.sampled_from([0, 8, 512]))
    def create(self, count: int, max_tokens: int) -> object:
        sampling = cmd.SamplingRequest(max_tokens=max_tokens, temperature=0.0, top_p=1.0)
        events = self._send(
            cmd.CreateTasks(
                command_id=self._id(),
                request_id=f"request-{self._sent}",
                model_id=SMALL.model_id,
                instance_id="",
                kind="chat",
                count=count,
                sampling=sampling,
                api_node=NODE,
            )
        )
        return multiple(*(event.subject for event in events))

    @rule(task_ids=st.lists(tasks, max_size=3))
    def cancel(self, task_ids: list[str]) -> None:
        self._send(cmd.CancelTasks(command_id=self._id(), task_ids=task_ids, reason="nobody listens"))

    @rule(task_id=tasks, outcome=st.sampled_from(OUTCOMES))
    def task_ends(self, task_id: str, outcome: cmd.Finished | cmd.Broken | cmd.Stopped) -> None:
        self._send(cmd.ReportTask(command_id=self._id(), origin=NODE, task_id=task_id, outcome=outcome))

    @precondition(lambda self: self.cluster.state.tasks)
    @rule(outcome=st.sampled_from(OUTCOMES), cancelled=st.booleans())
    def an_open_task_ends(self, outcome: cmd.Finished | cmd.Broken | cmd.Stopped, cancelled: bool) -> None:
        task_id = min(self.cluster.state.tasks)
        if cancelled:
            self.cancel([task_id])
        self.task_ends(task_id, outcome)

    @rule(back=st.integers(1, 30))
    def an_old_report_comes_again(self, back: int) -> None:
        """As when a master had taken it, and crashed before it could say so, and left no record."""
        old = self._earlier[-min(back, len(self._earlier))]
        if isinstance(old, cmd.Report):
            self._send(old)

    @invariant()
    def every_accepted_task_is_open_or_has_one_end(self) -> None:
        created = {e.task_id for e in self.cluster.history if isinstance(e, ev.TaskCreated)}
        ends = Counter(e.task_id for e in self.cluster.history if isinstance(e, TERMINAL))
        assert set(ends.values()) <= {1}, ends
        assert created == ends.keys() | self.cluster.state.tasks.keys()
        assert not ends.keys() & self.cluster.state.tasks.keys()

    @invariant()
    def a_wanted_instance_is_never_lost(self) -> None:
        wanted = {e.instance_id for e in self.cluster.history if isinstance(e, ev.InstanceRequested)}
        deleted = {e.instance_id for e in self.cluster.history if isinstance(e, ev.InstanceDeleted)}
        assert self.cluster.state.instances.keys() == wanted - deleted

    @invariant()
    def something_moves_every_instance_on(self) -> None:
        """Waiting has a time, placed has a living runner on a node that is up, failed has a cause."""
        state = self.cluster.state
        for instance in state.instances.values():
            match instance.status:
                case "waiting":
                    assert instance.retry_at <= self.cluster.now + POLICY.backoff_cap_s
                case "failed":
                    assert instance.cause is not None
                case _:
                    runners = state.instance_runners(instance)
                    for runner in runners:
                        assert state.nodes[runner.node_id].up
                        assert not isinstance(runner.status, status.Failed | status.Shutdown)
                    if not any(isinstance(runner.status, status.ShuttingDown) for runner in runners):
                        assert (instance.status == "ready") == state.all_ready(instance)

    @invariant()
    def no_device_is_promised_twice(self) -> None:
        state = self.cluster.state
        promised = Counter[tuple[str, str]]()
        for instance in state.instances.values():
            for rank in instance.placement.ranks if instance.placement else ():
                promised[rank.node_id, rank.device_id] += rank.reserved_bytes
        for (node_id, device_id), held in promised.items():
            (device,) = (each for each in state.nodes[node_id].devices if each.device_id == device_id)
            assert held <= device.memory_bytes

    @invariant()
    def a_task_is_with_a_ready_instance(self) -> None:
        for task in self.cluster.state.tasks.values():
            assert self.cluster.state.runners[task.runner_id].current
            assert self.cluster.state.instances[task.instance_id].status == "ready"

    def teardown(self) -> None:
        """When all nodes are gone and come back, no task is open and every instance can run again."""
        cluster = self.cluster
        for node_id in NODES:
            cluster.do(node_started(node_id, "last-run"))
        assert cluster.state.tasks == {}
        assert cluster.state.runners == {}
        assert all(instance.status == "waiting" for instance in cluster.state.instances.values())
        self.every_accepted_task_is_open_or_has_one_end()


TestCommands = Commands.TestCase
TestCommands.settings = settings(max_examples=100, stateful_step_count=80, deadline=None)
