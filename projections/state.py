"""`ClusterState`: what the log means, as the deciders see it. A fold of the log, see `projections.evolve`.

Entities are immutable and replaced on change; the state's dictionaries are its own. What has ended (tasks
done, instances deleted) leaves the state and stays in the log and in projections.db.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from events.base import Value
from events.experts import Balance, LayerMoves, MigrationStage
from events.status import Ready, RunnerStatus
from events.values import (
    Cause,
    Device,
    EngineReport,
    ModelCard,
    ModelSource,
    Placement,
    PlacementSettings,
    Sampling,
    TaskKind,
)


class Node(Value, frozen=True):
    """A node as it last reported itself. ``up`` is false between its end and its next start."""

    node_id: str
    incarnation: str
    name: str
    version: str
    pid: int
    platform: str
    api_url: str
    host: str
    devices: list[Device]
    engines: list[EngineReport]
    memory_total: int
    memory_available: int
    disk_free: int
    up: bool


class Model(Value, frozen=True):
    """A known model; ``paths`` maps the nodes that have its files to where they are."""

    model_id: str
    card: ModelCard
    source: ModelSource
    paths: dict[str, str] = {}


class Download(Value, frozen=True):
    """A fetch that runs or has failed. It leaves the state when the model is stored."""

    model_id: str
    node_id: str
    status: Literal["running", "failed"]
    attempt: int
    done_bytes: int = 0
    total_bytes: int = 0
    cause: Cause | None = None
    retry_at: float = 0.0


class Runner(Value, frozen=True):
    """A runner of a current placement, or one of an earlier placement that has not ended yet."""

    runner_id: str
    instance_id: str
    node_id: str
    device_id: str
    status: RunnerStatus
    current: bool
    """False once its placement is void: it is to be shut down."""
    pid: int = 0
    process_started_at: float = 0.0
    port: int = 0
    """``pid`` and start are its process's identity, other ranks find it at ``port``; 0 before it is there."""


InstanceStatus = Literal["waiting", "placed", "ready", "failed"]


class Instance(Value, frozen=True):
    """A wanted instance (the user's will) and what is so (placement, status, cause of its last trouble).

    ``waiting``: no placement; tried at ``retry_at``. ``placed``: its runners are on their way.
    ``failed``: retries used up.
    """

    instance_id: str
    model_id: str
    settings: PlacementSettings
    status: InstanceStatus = "waiting"
    placement: Placement | None = None
    placed_at: float = 0.0
    ready_at: float = 0.0
    attempts: int = 0
    """Placements that failed since the last success."""
    retry_at: float = 0.0
    cause: Cause | None = None


class Task(Value, frozen=True):
    """An open task. It leaves the state at its one terminal event."""

    task_id: str
    request_id: str
    index: int
    instance_id: str
    runner_id: str
    model_id: str
    kind: TaskKind
    sampling: Sampling
    api_node: str
    cancelled: str = ""
    """Reason of the cancellation that the runner has yet to confirm."""


class LoadReading(Value, frozen=True):
    """The last load window that was taken: logical rows ``[layer][expert]`` and what they took."""

    window: int
    epoch: int
    steps: int
    tokens: int
    seconds: float
    bandwidth: float
    experts: list[list[int]]


class Migration(Value, frozen=True):
    """Experts on their way. ``layers[position]`` is the one at hand, in ``stage`` since ``since``."""

    migration_id: str
    epoch: int
    layers: list[LayerMoves]
    position: int
    stage: MigrationStage
    since: float


class Experts(Value, frozen=True):
    """Where the experts of an instance with EPLB are: ``maps[layer][slot]`` as committed.

    They outlive placements: new runners load what is here.
    """

    instance_id: str
    epoch: int
    ranks: int
    experts: int
    maps: list[list[int]]
    window: int = 0
    """Number of the last window that was taken, of the current runner."""
    load: LoadReading | None = None
    """The last window that is not weighed yet."""
    weighed: int = 0
    """Number of the last window that was weighed, of the current runner."""
    balance: Balance | None = None
    """As of the last decision."""
    migration: Migration | None = None


class Link(Value, frozen=True):
    """The way from one node to another as last measured: seconds for a round trip, bytes per second."""

    latency_s: float
    bandwidth: float


@dataclass(slots=True)
class ClusterState:
    """The whole. ``seq`` and ``at`` are those of the last event applied; (node, model) keys ``downloads``."""

    seq: int = 0
    epoch: int = 0
    at: float = 0.0
    master: str = ""
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    downloads: dict[tuple[str, str], Download] = field(default_factory=dict[tuple[str, str], Download])
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    runners: dict[str, Runner] = field(default_factory=dict[str, Runner])
    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
    experts: dict[str, Experts] = field(default_factory=dict[str, Experts])
    """Of instances with EPLB, by instance."""
    links: dict[tuple[str, str], Link] = field(default_factory=dict[tuple[str, str], Link])
    """Between nodes that reach each other, by (from, to)."""
    open_tasks: dict[str, int] = field(default_factory=dict[str, int])
    """Open tasks per instance: what routing balances on."""

    def instance_runners(self, instance: Instance) -> list[Runner]:
        """The runners of an instance's current placement, by rank."""
        if instance.placement is None:
            return []
        return [self.runners[rank.runner_id] for rank in instance.placement.ranks]

    def all_ready(self, instance: Instance) -> bool:
        """True where every rank of the placement is Ready."""
        runners = self.instance_runners(instance)
        return bool(runners) and all(isinstance(runner.status, Ready) for runner in runners)
