"""Every command and report of the cluster. `docs/events.md` describes each, as it does the events."""

from __future__ import annotations

from typing import get_args

import msgspec

from events.base import Command, Report
from events.expert_commands import ExpertCommand
from events.status import Idle, RunnerStatus
from events.values import (
    Cause,
    Device,
    EngineReport,
    FinishReason,
    LinkReading,
    ModelCard,
    ModelSource,
    Placement,
    PlacementSettings,
    Policy,
    TaskKind,
    Timings,
    Usage,
)


class Facts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that a decider may know besides state and command.

    ``now`` is Unix seconds; ``seed`` is the source of every id and draw of the decision, see `events.ids`;
    ``epoch`` is the term of the master that decides.
    """

    now: float
    seed: str
    epoch: int
    node_id: str


class StartEpoch(Command, frozen=True):
    """A node takes office as master: the first decision of its term."""

    node_id: str
    incarnation: str


class PlaceInstance(Command, frozen=True):
    """Run this model. Rejected where no candidate fits, with the numbers."""

    model_id: str
    settings: PlacementSettings


class RetryInstance(Command, frozen=True):
    """Try a failed or waiting instance now."""

    instance_id: str
    by: str


class DeleteInstance(Command, frozen=True):
    """Stop an instance and want it no more."""

    instance_id: str


class ReconcileInstance(Command, frozen=True):
    """The master to itself: this instance has no placement and its time to be tried has come."""

    instance_id: str
    policy: Policy


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`events.values.Sampling` as the client sent it; ``seed`` may be missing."""

    max_tokens: int
    """0: as many as the context has room for."""
    temperature: float
    top_p: float
    seed: int | None = None
    stop: list[str] = []
    logprobs: int = -1


class CreateTasks(Command, frozen=True):
    """Generate: ``count`` tasks of one request. ``instance_id`` empty: the least busy ready instance."""

    request_id: str
    model_id: str
    instance_id: str
    kind: TaskKind
    count: int
    sampling: SamplingRequest
    api_node: str


class CancelTasks(Command, frozen=True):
    """Nobody waits for these tasks any more. Tasks that have ended are left as they are."""

    task_ids: list[str]
    reason: str


class ReportNodeStarted(Report, frozen=True):
    """A node is up. What it ran in an earlier incarnation is dead, and is recorded so."""

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
    policy: Policy


class ReportNodeStopping(Report, frozen=True):
    """A node is about to stop, for this reason; its runners are stopping with it."""

    incarnation: str
    reason: str
    policy: Policy


class ReportResources(Report, frozen=True):
    """A reading of a node's memory and disk. Logged only where it changes what could be placed."""

    memory_available: int
    disk_free: int


class ReportLinks(Report, frozen=True):
    """What a node measures of its ways to all nodes that it reaches. Logged only where it matters."""

    links: list[LinkReading]


class ReportNodeLost(Report, frozen=True):
    """The master hears nothing of a node any more; ``cause`` says how that was found."""

    node_id: str
    incarnation: str
    cause: Cause
    policy: Policy


class ReportBranch(Report, frozen=True):
    """What ``origin`` had decided on the losing side of a partition, and gave up."""

    fork: int
    winner: str
    reason: str
    command_ids: list[str]


class ReportRefusedPeer(Report, frozen=True):
    """Someone tried to join and was turned away."""

    host: str
    reason: str


class ReportActor(Report, frozen=True):
    """An actor's crash, or letters to a dead one (``dead_letters`` above 0)."""

    actor: str
    error: str
    action: str
    restarts: int
    dead_letters: int = 0


class ReportModel(Report, frozen=True):
    """A model is known at a node. ``path`` is empty where its files are not there (yet)."""

    card: ModelCard
    source: ModelSource
    path: str
    size_bytes: int


class ReportModelGone(Report, frozen=True):
    """A model's files have disappeared from a node."""

    model_id: str


class ReportDownload(Report, frozen=True):
    """A fetch started (``cause`` none, ``done_bytes`` 0), moved on, or failed (``cause`` given).

    ``retryable`` false: trying again can't help, such as a file that the hub doesn't have.
    """

    model_id: str
    done_bytes: int
    total_bytes: int
    cause: Cause | None
    retryable: bool
    policy: Policy


class ReportRunner(Report, frozen=True):
    """A runner's new status, as its supervisor saw it."""

    runner_id: str
    status: RunnerStatus
    policy: Policy


class ReportAdoptable(Report, frozen=True):
    """A ready runner of rank 0 lives, and its group with it, that the log does not know of any more: it may
    carry its instance on.
    """

    instance_id: str
    placement: Placement
    processes: list[Idle] = []
    incarnations: list[str] = []
    """Of the nodes. Both of all ranks, by rank, as the log had them; empty in old reports."""
    card: ModelCard | None = None
    source: ModelSource | None = None
    """What was loaded; None in old reports."""


class Finished(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="outcome", tag=True):
    """The task's answer is complete."""

    finish_reason: FinishReason
    usage: Usage
    timings: Timings


class Broken(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="outcome", tag=True):
    """The task got no (whole) answer."""

    cause: Cause
    usage: Usage


class Stopped(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="outcome", tag=True):
    """The runner has dropped the task as it was told."""

    usage: Usage


class ReportTask(Report, frozen=True):
    """How a task ended, as its runner said."""

    task_id: str
    outcome: Finished | Broken | Stopped


ClusterCommand = (
    StartEpoch
    | PlaceInstance
    | RetryInstance
    | DeleteInstance
    | ReconcileInstance
    | CreateTasks
    | CancelTasks
    | ReportNodeStarted
    | ReportNodeStopping
    | ReportResources
    | ReportLinks
    | ReportNodeLost
    | ReportRefusedPeer
    | ReportBranch
    | ReportActor
    | ReportModel
    | ReportModelGone
    | ReportDownload
    | ReportRunner
    | ReportAdoptable
    | ReportTask
    | ExpertCommand
)
"""The union that the log's commands decode to."""

COMMAND_TYPES: dict[str, type[Command]] = {cls.__name__: cls for cls in get_args(ClusterCommand)}
