"""Plausible histories: random commands, decided by the real decider, as drafts for a log.

A history is made from a seed and a number of decisions; fewer decisions of the same seed are a prefix of
more, so that hypothesis shrinks a failing history to its shortest form.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import strategies as st
from support import expert_commands
from support.cards import CARDS, SMALL
from support.expert_commands import CARD, EPLB

from actors.decider import NAME, VERSION, decide
from actors.refusal import Rejected
from events import commands as cmd
from events import status
from events.base import Command, Event
from events.commands import Facts
from events.log import EventLog
from events.reader import LogReader
from events.record import Draft
from events.values import (
    Cause,
    Device,
    Diagnostics,
    EngineReport,
    ModelCard,
    ModelSource,
    PlacementSettings,
    Policy,
    Timings,
    Usage,
)
from projections.evolve import apply
from projections.invariants import violations
from projections.state import ClusterState, Runner

GIB = 1 << 30
MAX_INSTANCES = 8
MODELS = (*CARDS, CARD)
POLICY = Policy(max_instance_retries=2)
NODES = ("node-anna", "node-bert")

KILLED = Cause(code="runner_killed", message="The runner was killed by signal SIGKILL.")
FAILURES = (
    (KILLED, Diagnostics(signal="SIGKILL", stderr_tail=["loading", "Killed"])),
    (Cause(code="deadline", message="No progress for 60 s.", detail={"seconds": 60}), Diagnostics()),
    (Cause(code="weights_mismatch", message="layers.3 is missing."), Diagnostics(exit_code=1)),
)


class History:
    """A cluster that lives by chance. Iterate over it for drafts; ``state`` is what they fold to.

    ``epochs`` in some 110 decisions begin a new epoch.
    """

    def __init__(self, seed: int, *, epochs: float = 1.0) -> None:
        self.state = ClusterState()
        self._weights = {**_WEIGHTS, _new_epoch: epochs}
        self._random = random.Random(seed)
        self._now = 1_780_000_000.0
        self._steps = 0
        self._opening: list[Command] = [
            cmd.StartEpoch(command_id="cmd-start", node_id=NODES[0], incarnation="run-0"),
            *(self._start_node(node_id) for node_id in NODES),
            *(self._model(card) for card in MODELS),
        ]

    def __iter__(self) -> Iterator[Draft]:
        while True:
            yield self.step()

    def take(self, n_decisions: int) -> list[Draft]:
        """The next ``n_decisions`` drafts."""
        return [self.step() for _ in range(n_decisions)]

    def step(self) -> Draft:
        """The next decision that leaves a record; the state has its events afterwards."""
        while True:
            self._steps += 1
            self._now += self._random.choice((0.001, 0.02, 0.7, 5.0, 120.0))
            command = self._opening.pop(0) if self._opening else self._any()
            draft = self._decide(command)
            if draft is not None:
                self._fold(draft)
                return draft

    def end(self) -> Iterator[Draft]:
        """Delete all instances and stop all nodes, so that nothing of it asks for anything any more."""
        for command in (*self._deletions(), *self._goodbyes()):
            draft = self._decide(command)
            if draft is not None:
                self._fold(draft)
                yield draft

    def _deletions(self) -> list[Command]:
        return [
            cmd.DeleteInstance(command_id=f"end-{instance_id}", instance_id=instance_id)
            for instance_id in self.state.instances
        ]

    def _goodbyes(self) -> list[Command]:
        return [
            cmd.ReportNodeStopping(
                command_id=f"end-{node.node_id}",
                origin=node.node_id,
                incarnation=node.incarnation,
                reason="SIGTERM",
                policy=POLICY,
            )
            for node in self.state.nodes.values()
        ]

    def _decide(self, command: Command) -> Draft | None:
        epoch = self.state.epoch + isinstance(command, cmd.StartEpoch)
        seed = f"seed-{self._steps}-{self._random.getrandbits(32)}"
        facts = Facts(now=round(self._now, 3), seed=seed, epoch=epoch, node_id=NODES[0])
        events: list[Event] = []
        rejection: Cause | None = None
        try:
            events = decide(self.state, command, facts)
        except Rejected as refusal:
            rejection = refusal.cause
        if not events and rejection is None and isinstance(command, cmd.Report):
            return None
        return Draft(
            command=command,
            facts=facts,
            decider=NAME,
            decider_version=VERSION,
            events=events,
            rejection=rejection,
        )

    def _fold(self, draft: Draft) -> None:
        for event in draft.events:
            apply(self.state, self.state.seq + 1, draft.epoch, draft.facts.now, event)
        assert violations(self.state) == []

    def _any(self) -> Command:
        (maker,) = self._random.choices(list(self._weights), weights=list(self._weights.values()))
        return maker(self)

    def _id(self) -> str:
        return f"cmd-{self._steps}"

    def _node(self) -> str:
        return self._random.choice(NODES)

    def _some(self, entities: dict[str, object], kind: str) -> str:
        """The id of one of them, now and then one that does not exist."""
        if not entities or self._random.random() < 0.05:
            return f"{kind}-unheard-of"
        return self._random.choice(list(entities))

    def _start_node(self, node_id: str) -> Command:
        memory = 16 * GIB if node_id == NODES[0] else 64 * GIB
        devices = [
            Device(device_id="cpu:0", kind="cpu", name="Some CPU", memory_bytes=memory),
            Device(device_id="cpu:1", kind="cpu", name="Some CPU", memory_bytes=memory),
            Device(device_id="metal:0", kind="metal", name="Some GPU", memory_bytes=memory // 2),
        ]
        engines = [
            EngineReport(
                engine="mlx",
                version="0.32.0",
                ok=True,
                detail="2 x 2 matrices multiply",
                device_ids=["cpu:0", "metal:0"],
                dtype="float32",
                options={"blas": "openblas"},
            ),
            EngineReport(
                engine="torch",
                version="2.13.0",
                ok=node_id == NODES[1],
                detail="not installed" if node_id == NODES[0] else "experts can be spread",
                device_ids=["cpu:0", "cpu:1"],
                dtype="float32",
                strategies=["expert"],
            ),
        ]
        return cmd.ReportNodeStarted(
            command_id=f"{self._id()}-{node_id}",
            origin=node_id,
            incarnation=f"run-{self._steps}",
            name=node_id.removeprefix("node-"),
            version="0.1.0",
            pid=1000 + self._steps,
            platform="Linux x86_64",
            api_url="http://127.0.0.1:52415",
            host="127.0.0.1",
            devices=devices,
            engines=engines,
            memory_total=memory,
            memory_available=memory - 2 * GIB,
            policy=POLICY,
        )

    def _model(self, card: ModelCard) -> Command:
        at_hand = self._random.random() < 0.7
        return cmd.ReportModel(
            command_id=f"{self._id()}-{card.model_id}",
            origin=self._node(),
            card=card,
            source=ModelSource(kind="hub", location=f"some/{card.model_id}", revision="main"),
            path=f"/models/{card.model_id}" if at_hand else "",
            size_bytes=card.weight_bytes + 3_000_000 if at_hand else 0,
        )


def _new_epoch(h: History) -> Command:
    return cmd.StartEpoch(command_id=h._id(), node_id=h._node(), incarnation=f"run-{h._steps}")


def _node_starts(h: History) -> Command:
    return h._start_node(h._node())


def _node_stops(h: History) -> Command:
    node_id = h._node()
    return cmd.ReportNodeStopping(
        command_id=h._id(),
        origin=node_id,
        incarnation=h.state.nodes[node_id].incarnation,
        reason="SIGTERM",
        policy=POLICY,
    )


def _resources(h: History) -> Command:
    available = h._random.randrange(1, 64) * GIB
    disk = h._random.randrange(100) * GIB
    return cmd.ReportResources(
        command_id=h._id(), origin=h._node(), memory_available=available, disk_free=disk
    )


def _actor(h: History) -> Command:
    return cmd.ReportActor(
        command_id=h._id(),
        origin=h._node(),
        actor=h._random.choice(("telemetry", "downloader")),
        error="ValueError: no such sensor",
        action="restarted",
        restarts=1,
        dead_letters=h._random.choice((0, 3)),
    )


def _model_known(h: History) -> Command:
    return h._model(h._random.choice(MODELS))


def _model_gone(h: History) -> Command:
    return cmd.ReportModelGone(
        command_id=h._id(), origin=h._node(), model_id=h._some(h.state.models, "model")
    )


def _download(h: History) -> Command:
    total = SMALL.weight_bytes
    failed = h._random.random() < 0.3
    return cmd.ReportDownload(
        command_id=h._id(),
        origin=h._node(),
        model_id=h._some(h.state.models, "model"),
        done_bytes=h._random.randrange(total),
        total_bytes=total,
        cause=Cause(code="hub_unreachable", message="The hub did not answer.") if failed else None,
        retryable=h._random.random() < 0.8,
        policy=POLICY,
    )


def _place(h: History) -> Command:
    if len(h.state.instances) >= MAX_INSTANCES:
        return _delete(h)
    settings = PlacementSettings(
        context=h._random.choice((0, 0, 512, 512, 4096, 1 << 20)),
        batch=h._random.choice((1, 1, 1, 8, 8, 8, 0)),
        device_id=h._random.choice(("", "", "cpu:0")),
    )
    model_id = h._some(h.state.models, "model")
    return cmd.PlaceInstance(command_id=h._id(), model_id=model_id, settings=settings)


def _place_mixture(h: History) -> Command:
    if len(h.state.instances) >= MAX_INSTANCES:
        return _delete(h)
    settings = PlacementSettings(context=512, batch=1, shard_strategy="expert", ranks=2, eplb=EPLB)
    return cmd.PlaceInstance(command_id=h._id(), model_id=CARD.model_id, settings=settings)


def _experts_change(h: History) -> Command:
    """What rank 0 or the controller of an instance with EPLB says next, now and then something wrong."""
    ready = [
        i for i in h.state.instances.values() if i.status == "ready" and i.instance_id in h.state.experts
    ]
    if not ready:
        return _runner(h)
    instance = h._random.choice(ready)
    assert instance.placement is not None
    runner_id = instance.placement.ranks[0].runner_id
    return expert_commands.any_of(
        h._random, h._id(), NODES[1], runner_id, h.state.experts[instance.instance_id]
    )


def _reconcile(h: History) -> Command:
    waiting = {k: i for k, i in h.state.instances.items() if i.status == "waiting" and i.retry_at <= h._now}
    instance_id = h._some(waiting or h.state.instances, "instance")
    return cmd.ReconcileInstance(command_id=h._id(), instance_id=instance_id, policy=POLICY)


def _retry(h: History) -> Command:
    instance_id = h._some(h.state.instances, "instance")
    return cmd.RetryInstance(command_id=h._id(), instance_id=instance_id, by="a user")


def _delete(h: History) -> Command:
    return cmd.DeleteInstance(command_id=h._id(), instance_id=h._some(h.state.instances, "instance"))


def _create(h: History) -> Command:
    ready = [i for i in h.state.instances.values() if i.status == "ready"]
    if not ready and h._random.random() < 0.8:
        return _runner(h)
    model_id = h._random.choice(ready).model_id if ready else h._some(h.state.models, "model")
    sampling = cmd.SamplingRequest(
        max_tokens=h._random.choice((0, 64)), temperature=0.7, top_p=0.9, seed=h._random.choice((None, 7))
    )
    return cmd.CreateTasks(
        command_id=h._id(),
        request_id=f"req-{h._steps}",
        model_id=model_id,
        instance_id="",
        kind=h._random.choice(("chat", "completion")),
        count=h._random.choice((1, 1, 3)),
        sampling=sampling,
        api_node=h._node(),
    )


def _cancel(h: History) -> Command:
    task_ids = [h._some(h.state.tasks, "task")]
    return cmd.CancelTasks(command_id=h._id(), task_ids=task_ids, reason="the client has gone")


def _runner(h: History) -> Command:
    runner_id = h._some(h.state.runners, "runner")
    known = h.state.runners.get(runner_id)
    current = _next_status(h, known) if known is not None else status.Ready()
    return cmd.ReportRunner(
        command_id=h._id(),
        origin=known.node_id if known else NODES[0],
        runner_id=runner_id,
        status=current,
        policy=POLICY,
    )


def _next_status(h: History, runner: Runner) -> status.RunnerStatus:
    if h._random.random() < 0.05:
        cause, diagnostics = h._random.choice(FAILURES)
        return status.Failed(phase=type(runner.status).__name__, cause=cause, diagnostics=diagnostics)
    if not runner.current:
        return status.ShuttingDown() if h._random.random() < 0.5 else status.Shutdown()
    match runner.status:
        case status.Spawning():
            return status.Idle(pid=4000 + h._steps, started_at=h._now, options={"blas": "openblas"})
        case status.Idle():
            return status.Loading(layers=0, total=30)
        case status.Loading(layers=layers) if layers < 30:
            return status.Loading(layers=layers + 15, total=30)
        case status.Loading():
            return status.Loaded(notes=["rope_theta was 10000, is 1000000"])
        case status.Loaded():
            return status.WarmingUp()
        case _:
            return status.Ready()


def _task_ends(h: History) -> Command:
    task_id = h._some(h.state.tasks, "task")
    usage = Usage(prompt_tokens=h._random.randrange(1, 100), completion_tokens=h._random.randrange(64))
    timings = Timings(queued_s=0.01, prefill_s=0.2, decode_s=h._random.choice((0.0, 1.5)))
    finished = cmd.Finished(finish_reason="stop", usage=usage, timings=timings)
    broken = cmd.Broken(cause=Cause(code="engine_error", message="NaN in the logits."), usage=usage)
    outcome = h._random.choice((finished, finished, finished, broken, cmd.Stopped(usage=usage)))
    return cmd.ReportTask(command_id=h._id(), origin=NODES[0], task_id=task_id, outcome=outcome)


_WEIGHTS: dict[Callable[[History], Command], int] = {
    _runner: 40,
    _task_ends: 14,
    _create: 14,
    _place: 8,
    _place_mixture: 2,
    _experts_change: 30,
    _reconcile: 10,
    _download: 6,
    _cancel: 3,
    _model_known: 2,
    _model_gone: 1,
    _resources: 2,
    _actor: 2,
    _retry: 2,
    _delete: 1,
    _node_starts: 1,
    _node_stops: 1,
}


def drafts(max_decisions: int = 120) -> st.SearchStrategy[list[Draft]]:
    """Histories of up to ``max_decisions`` decisions."""
    return st.builds(
        lambda seed, n: History(seed).take(n), st.integers(0, 1 << 32), st.integers(0, max_decisions)
    )


def write_log(path: Path, history: list[Draft], *, batch: int = 50) -> None:
    """Append a history to the log at ``path``, ``batch`` decisions a commit."""
    log = EventLog.open(path)
    for start in range(0, len(history), batch):
        log.append(history[start : start + batch])
    log.close()


def logged(directory: Path, history: list[Draft]) -> LogReader:
    """A reader of a new log in ``directory`` that holds ``history``."""
    write_log(directory / "log.db", history)
    return LogReader.open(directory / "log.db")
