"""A cluster on paper, for given/when/then: commands go through the real decider, events through evolve."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.cards import SMALL

from actors.decider import Decide, decide
from actors.refusal import Rejected
from events import commands as cmd
from events import status as st
from events.base import Command, Event
from events.commands import Facts
from events.values import (
    Cause,
    Device,
    EngineReport,
    LinkReading,
    ModelCard,
    ModelSource,
    Placement,
    PlacementSettings,
    Policy,
    Timings,
    Usage,
)
from projections.evolve import apply
from projections.invariants import violations
from projections.state import ClusterState, Instance

GIB = 1 << 30
NODE = "node-a"
POLICY = Policy(max_instance_retries=3, backoff_base_s=0.5, backoff_cap_s=10.0)
USAGE = Usage(prompt_tokens=5, completion_tokens=3)
NOTHING = Usage(prompt_tokens=0, completion_tokens=0)
FINISHED = cmd.Finished(
    finish_reason="stop", usage=USAGE, timings=Timings(queued_s=0.0, prefill_s=0.1, decode_s=0.2)
)
KILLED = st.Failed(phase="Ready", cause=Cause(code="runner_killed", message="It was killed by SIGKILL."))

NOT_HEARD = Cause(code="node_lost", message="The node has not been heard for 1.5 s.")


class Cluster:
    """State, time and history. Every event is checked against the invariants as it is applied."""

    def __init__(self, rules: Decide = decide) -> None:
        self.state = ClusterState()
        self.history: list[Event] = []
        self.now = 1_000_000.0
        self._rules = rules
        self._commands = 0

    def do(self, command: Command) -> list[Event]:
        """Decide and apply; the events."""
        self._commands += 1
        seed = f"seed-{self._commands}"
        epoch = self.state.epoch + isinstance(command, cmd.StartEpoch)
        facts = Facts(now=self.now, seed=seed, epoch=epoch, node_id=NODE)
        events = self._rules(self.state, command, facts)
        for event in events:
            apply(self.state, self.state.seq + 1, epoch, self.now, event)
            assert violations(self.state) == [], (event, violations(self.state))
        self.history += events
        return events

    def refused(self, command: Command) -> Cause:
        """Decide what must be refused, and change nothing; the cause."""
        with pytest.raises(Rejected) as refusal:
            self.do(command)
        return refusal.value.cause

    # Commands of the usual kind

    def node(self, node_id: str = NODE, incarnation: str = "run-1", **changes: object) -> list[Event]:
        """A node of 16 GiB with one CPU starts."""
        return self.do(node_started(node_id, incarnation, **changes))

    def node_stops(self, node_id: str = NODE, incarnation: str = "run-1") -> list[Event]:
        return self.do(
            cmd.ReportNodeStopping(
                command_id=self.next_id(),
                origin=node_id,
                incarnation=incarnation,
                reason="SIGTERM",
                policy=POLICY,
            )
        )

    def node_lost(self, node_id: str, incarnation: str = "run-1", cause: Cause = NOT_HEARD) -> list[Event]:
        return self.do(
            cmd.ReportNodeLost(
                command_id=self.next_id(),
                origin=NODE,
                node_id=node_id,
                incarnation=incarnation,
                cause=cause,
                policy=POLICY,
            )
        )

    def adopt(self, instance_id: str, placement: Placement, node_id: str = NODE) -> list[Event]:
        """A node offers a runner of its own that lives, with its group."""
        return self.do(self.adopting(instance_id, placement, node_id))

    def adopting(
        self, instance_id: str, placement: Placement, node_id: str = NODE, **changes: object
    ) -> cmd.ReportAdoptable:
        return cmd.ReportAdoptable(
            command_id=self.next_id(),
            origin=node_id,
            instance_id=instance_id,
            placement=placement,
            **changes,  # type: ignore[arg-type]
        )

    def links(
        self, node_id: str, *others: str, latency: float = 0.001, bandwidth: float = 1e8
    ) -> list[Event]:
        """A node measures its ways to these others."""
        links = [LinkReading(node_id=other, latency_s=latency, bandwidth=bandwidth) for other in others]
        return self.do(cmd.ReportLinks(command_id=self.next_id(), origin=node_id, links=links))

    def model(self, card: ModelCard = SMALL, *, path: str = "/models/m", node_id: str = NODE) -> list[Event]:
        return self.do(
            cmd.ReportModel(
                command_id=self.next_id(),
                origin=node_id,
                card=card,
                source=ModelSource(kind="hub", location=f"org/{card.model_id}"),
                path=path,
                size_bytes=card.weight_bytes,
            )
        )

    def place(self, model_id: str = SMALL.model_id, **settings: object) -> str:
        """Place an instance; its id."""
        return self.do(self.placing(model_id, **settings))[0].subject

    def placing(self, model_id: str = SMALL.model_id, **settings: object) -> cmd.PlaceInstance:
        wanted = PlacementSettings(**{"context": 512, "batch": 1} | settings)  # type: ignore[arg-type]
        return cmd.PlaceInstance(command_id=self.next_id(), model_id=model_id, settings=wanted)

    def runner(self, status: st.RunnerStatus, instance_id: str = "", runner_id: str = "") -> list[Event]:
        """The runner of an instance (or the one named) reports a status."""
        return self.do(
            cmd.ReportRunner(
                command_id=self.next_id(),
                origin=NODE,
                runner_id=runner_id or self.runner_of(instance_id),
                status=status,
                policy=POLICY,
            )
        )

    def ready(self, instance_id: str) -> str:
        """Bring the runner of an instance to Ready; the instance's id."""
        for status in LIFE:
            self.runner(status, instance_id)
        return instance_id

    def served(self) -> str:
        """A node with a model and a ready instance of it; its id."""
        self.node()
        self.model()
        return self.ready(self.place())

    def reconcile(self, instance_id: str) -> list[Event]:
        return self.do(
            cmd.ReconcileInstance(command_id=self.next_id(), instance_id=instance_id, policy=POLICY)
        )

    def create(self, count: int = 1, **changes: object) -> list[str]:
        """Ask for tasks; their ids."""
        return [event.subject for event in self.do(self.creating(count, **changes))]

    def creating(self, count: int = 1, **changes: object) -> cmd.CreateTasks:
        sampling = cmd.SamplingRequest(
            **{"max_tokens": 16, "temperature": 0.0, "top_p": 1.0}  # type: ignore[arg-type]
            | {key: changes.pop(key) for key in ("seed", "max_tokens") if key in changes}
        )
        fields = {
            "request_id": f"request-{self._commands}",
            "model_id": SMALL.model_id,
            "instance_id": "",
            "kind": "chat",
            "count": count,
            "sampling": sampling,
            "api_node": NODE,
        }
        return cmd.CreateTasks(command_id=self.next_id(), **(fields | changes))  # type: ignore[arg-type]

    def cancel(self, *task_ids: str) -> list[Event]:
        return self.do(
            cmd.CancelTasks(command_id=self.next_id(), task_ids=list(task_ids), reason="the client went away")
        )

    def ended(self, task_id: str, outcome: cmd.Finished | cmd.Broken | cmd.Stopped) -> list[Event]:
        return self.do(
            cmd.ReportTask(command_id=self.next_id(), origin=NODE, task_id=task_id, outcome=outcome)
        )

    def download(
        self,
        done: int = 0,
        total: int = 0,
        *,
        cause: Cause | None = None,
        retryable: bool = True,
        model_id: str = SMALL.model_id,
    ) -> list[Event]:
        return self.do(
            cmd.ReportDownload(
                command_id=self.next_id(),
                origin=NODE,
                model_id=model_id,
                done_bytes=done,
                total_bytes=total,
                cause=cause,
                retryable=retryable,
                policy=POLICY,
            )
        )

    def delete(self, instance_id: str) -> list[Event]:
        return self.do(cmd.DeleteInstance(command_id=self.next_id(), instance_id=instance_id))

    def retry(self, instance_id: str) -> list[Event]:
        return self.do(cmd.RetryInstance(command_id=self.next_id(), instance_id=instance_id, by="a user"))

    # Looking

    def instance(self, instance_id: str) -> Instance:
        return self.state.instances[instance_id]

    def runner_of(self, instance_id: str) -> str:
        placement = self.instance(instance_id).placement
        assert placement is not None
        return placement.ranks[0].runner_id

    def next_id(self) -> str:
        """An id for the next command."""
        return f"cmd-{self._commands}"


LIFE: list[st.RunnerStatus] = [
    st.Idle(pid=4242, started_at=1.0),
    st.Loading(layers=0, total=30),
    st.Loading(layers=30, total=30),
    st.Loaded(),
    st.WarmingUp(),
    st.Ready(),
]
"""What a healthy runner reports."""


def device(device_id: str = "cpu:0", memory: int = 16 * GIB) -> Device:
    kind = device_id.split(":")[0]
    return Device(device_id=device_id, kind=kind, name="a device", memory_bytes=memory)  # type: ignore[arg-type]


def engine(devices: Sequence[str] = ("cpu:0",), *, ok: bool = True, **changes: object) -> EngineReport:
    fields = {"engine": "mlx", "version": "1", "detail": "as it should", "dtype": "float32"}
    return EngineReport(ok=ok, device_ids=list(devices), **(fields | changes))  # type: ignore[arg-type]


def node_started(node_id: str, incarnation: str = "run-1", **changes: object) -> cmd.ReportNodeStarted:
    """A start of a node with 16 GiB, all free."""
    fields = {
        "name": node_id,
        "version": "0.1.0",
        "pid": 1,
        "platform": "Linux",
        "api_url": "http://127.0.0.1:52415",
        "host": "127.0.0.1",
        "devices": [device()],
        "engines": [engine()],
        "memory_total": 16 * GIB,
        "memory_available": 16 * GIB,
        "policy": POLICY,
    }
    return cmd.ReportNodeStarted(
        command_id=f"start-{node_id}-{incarnation}",
        origin=node_id,
        incarnation=incarnation,
        **(fields | changes),  # type: ignore[arg-type]
    )
