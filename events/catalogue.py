"""Every event of the cluster. `docs/events.md` describes each; a test fails when one is missing there."""

from __future__ import annotations

from typing import get_args

from events.base import Event
from events.expert_events import ExpertEvent
from events.status import RunnerStatus
from events.values import (
    Candidate,
    Cause,
    Device,
    EngineReport,
    FinishReason,
    LinkReading,
    ModelCard,
    ModelSource,
    Placement,
    PlacementSettings,
    Sampling,
    TaskKind,
    Timings,
    Usage,
)


class EpochStarted(Event, frozen=True):
    """A master took office. Everything after it, up to the next one, carries ``epoch``."""

    SUBJECT = "node_id"
    epoch: int
    node_id: str
    incarnation: str


class NodeStarted(Event, frozen=True):
    """A node came up, with what it has."""

    SUBJECT = "node_id"
    node_id: str
    incarnation: str
    name: str
    version: str
    pid: int
    platform: str
    api_url: str
    host: str
    """Address at which the other nodes of the cluster reach it."""
    devices: list[Device]
    engines: list[EngineReport]
    memory_total: int
    memory_available: int


class NodeStopped(Event, frozen=True):
    """A node said goodbye, or (``clean`` false) was found to have died without a word."""

    SUBJECT = "node_id"
    node_id: str
    incarnation: str
    clean: bool
    cause: Cause


class NodeResourcesChanged(Event, frozen=True):
    """The memory that placement may count on changed by enough to matter."""

    SUBJECT = "node_id"
    OBSERVATION = True
    node_id: str
    memory_available: int
    disk_free: int


class LinksChanged(Event, frozen=True):
    """A node reaches other nodes than before, or over ways that became much faster or slower."""

    SUBJECT = "node_id"
    OBSERVATION = True
    node_id: str
    links: list[LinkReading]


class BranchRejected(Event, frozen=True):
    """After a partition, a node's side of the log gave way to the longer one. What it had decided after
    decision ``fork`` is void; it is kept in that node's ``rejected_decisions``.
    """

    SUBJECT = "node_id"
    node_id: str
    fork: int
    winner: str
    reason: str
    command_ids: list[str]


class PeerRefused(Event, frozen=True):
    """Someone tried to join the cluster and was turned away, for this reason."""

    SUBJECT = "node_id"
    node_id: str
    host: str
    reason: str


class ActorFailed(Event, frozen=True):
    """An actor crashed; ``action`` is what its supervisor did (restarted, escalated, stopped)."""

    SUBJECT = "actor"
    node_id: str
    actor: str
    error: str
    action: str
    restarts: int


class DeadLettersCounted(Event, frozen=True):
    """Messages reached an actor that had stopped; ``count`` since the last such event."""

    SUBJECT = "actor"
    node_id: str
    actor: str
    count: int
    sample: str


class ModelDescribed(Event, frozen=True):
    """A model became known: its card and where its files come from."""

    SUBJECT = "model_id"
    model_id: str
    card: ModelCard
    source: ModelSource


class ModelStored(Event, frozen=True):
    """All files of a model are on a node, verified."""

    SUBJECT = "model_id"
    model_id: str
    node_id: str
    path: str
    size_bytes: int


class ModelGone(Event, frozen=True):
    """A model's files are no longer on a node."""

    SUBJECT = "model_id"
    model_id: str
    node_id: str


class DownloadStarted(Event, frozen=True):
    """A node began to fetch a model's files. ``attempt`` counts from 1 since the last success."""

    SUBJECT = "model_id"
    model_id: str
    node_id: str
    source: ModelSource
    attempt: int


class DownloadProgressed(Event, frozen=True):
    """A fetch moved on by enough to be worth a line."""

    SUBJECT = "model_id"
    OBSERVATION = True
    model_id: str
    node_id: str
    done_bytes: int
    total_bytes: int


class DownloadFailed(Event, frozen=True):
    """A fetch failed. It is tried again at ``retry_at`` (Unix seconds); 0 means: not by itself."""

    SUBJECT = "model_id"
    model_id: str
    node_id: str
    cause: Cause
    attempt: int
    retry_at: float


class InstanceRequested(Event, frozen=True):
    """A user wants an instance of a model. It stays wanted until it is deleted."""

    SUBJECT = "instance_id"
    instance_id: str
    model_id: str
    settings: PlacementSettings


class InstancePlaced(Event, frozen=True):
    """The master chose where the instance runs, from these candidates."""

    SUBJECT = "instance_id"
    instance_id: str
    placement: Placement
    candidates: list[Candidate]


class InstanceReady(Event, frozen=True):
    """Every rank of the placement is ready: the instance takes tasks."""

    SUBJECT = "instance_id"
    instance_id: str
    load_s: float
    """Seconds from the placement to readiness."""


class InstanceSetBack(Event, frozen=True):
    """The placement is void; the instance is placed again at ``retry_at`` (Unix seconds)."""

    SUBJECT = "instance_id"
    instance_id: str
    cause: Cause
    attempt: int
    retry_at: float


class InstanceFailed(Event, frozen=True):
    """All retries are used up. The instance stays wanted; a restart of the node or a retry resumes it."""

    SUBJECT = "instance_id"
    instance_id: str
    cause: Cause
    attempts: int


class InstanceRetried(Event, frozen=True):
    """Someone asked for a failed or waiting instance to be tried now, with its retries counted anew."""

    SUBJECT = "instance_id"
    instance_id: str
    by: str


class InstanceDeleted(Event, frozen=True):
    """The user wants the instance no more. Its runners are told to stop."""

    SUBJECT = "instance_id"
    instance_id: str


class RunnerStatusChanged(Event, frozen=True):
    """A runner moved on in its life cycle. Progress within Loading is logged only now and then."""

    SUBJECT = "runner_id"
    runner_id: str
    instance_id: str
    status: RunnerStatus


class TaskCreated(Event, frozen=True):
    """A request was accepted and given to an instance. The prompt itself is not in the log.

    ``request_id`` joins the tasks of one HTTP request (n choices, several prompts).
    """

    SUBJECT = "task_id"
    task_id: str
    request_id: str
    index: int
    instance_id: str
    runner_id: str
    model_id: str
    kind: TaskKind
    sampling: Sampling
    api_node: str
    """The node that the client is connected to: it has the prompt and takes the tokens."""


class TaskCancelRequested(Event, frozen=True):
    """Nobody wants the answer any more; the runner is told. The end comes as TaskCancelled."""

    SUBJECT = "task_id"
    task_id: str
    reason: str


class TaskFinished(Event, frozen=True):
    """A task ended well: the one durable record of its tokens and times."""

    SUBJECT = "task_id"
    task_id: str
    finish_reason: FinishReason
    usage: Usage
    timings: Timings


class TaskFailed(Event, frozen=True):
    """A task ended without its answer."""

    SUBJECT = "task_id"
    task_id: str
    cause: Cause
    usage: Usage


class TaskCancelled(Event, frozen=True):
    """A task ended because it was cancelled; ``usage`` is what it had made until then."""

    SUBJECT = "task_id"
    task_id: str
    reason: str
    usage: Usage


ClusterEvent = (
    EpochStarted
    | NodeStarted
    | NodeStopped
    | NodeResourcesChanged
    | LinksChanged
    | PeerRefused
    | BranchRejected
    | ActorFailed
    | DeadLettersCounted
    | ModelDescribed
    | ModelStored
    | ModelGone
    | DownloadStarted
    | DownloadProgressed
    | DownloadFailed
    | InstanceRequested
    | InstancePlaced
    | InstanceReady
    | InstanceSetBack
    | InstanceFailed
    | InstanceRetried
    | InstanceDeleted
    | RunnerStatusChanged
    | TaskCreated
    | TaskCancelRequested
    | TaskFinished
    | TaskFailed
    | TaskCancelled
    | ExpertEvent
)
"""The union that the log's bodies decode to."""

EVENT_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in get_args(ClusterEvent)}
