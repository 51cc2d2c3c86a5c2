"""Instances as the API shows them: what is wanted, what is so, and how far it has come."""

from __future__ import annotations

import msgspec

from events import status
from events.experts import Balance, MigrationStage
from events.status import RunnerStatus
from events.values import Cause, Placement, PlacementSettings
from projections.state import ClusterState, Experts, Instance, InstanceStatus, Migration


class RunnerView(msgspec.Struct, frozen=True, kw_only=True):
    """A runner of the current placement. ``layers`` of ``total`` are loaded."""

    runner_id: str
    rank: int
    node_id: str
    device_id: str
    status: str
    layers: int = 0
    total: int = 0
    pid: int = 0
    cause: Cause | None = None


class MigrationView(msgspec.Struct, frozen=True, kw_only=True):
    """Experts on their way: ``layer``, the ``done`` + 1st of ``total``, is in ``stage`` since then."""

    migration_id: str
    epoch: int
    layer: int
    stage: MigrationStage
    since: float
    done: int
    total: int


class ExpertsView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the experts are. ``epoch`` counts their placements, ``balance`` is as of the last decision."""

    epoch: int
    ranks: int
    layers: int
    experts: int
    slots: int
    """Physical experts of a layer, on all ranks together."""
    balance: Balance | None
    migration: MigrationView | None


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """An instance. ``status``: waiting (placed again at ``retry_at``), placed, ready, or failed."""

    instance_id: str
    model_id: str
    status: InstanceStatus
    settings: PlacementSettings
    placement: Placement | None
    runners: list[RunnerView]
    open_tasks: int
    placed_at: float
    ready_at: float
    attempts: int
    """Placements that failed since the last success."""
    retry_at: float
    cause: Cause | None
    """Its last trouble."""
    experts: ExpertsView | None
    """With the load balancer of experts only."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an instance is from being ready. ``phase`` is what ``done`` of ``total`` are counted in."""

    instance_id: str
    model_id: str
    status: InstanceStatus
    phase: str
    """waiting, downloading (bytes), a runner's status such as Loading (layers), or ready."""
    done: int = 0
    total: int = 0
    cause: Cause | None = None


def instance_view(state: ClusterState, instance: Instance) -> InstanceView:
    """The view of one instance."""
    return InstanceView(
        instance_id=instance.instance_id,
        model_id=instance.model_id,
        status=instance.status,
        settings=instance.settings,
        placement=instance.placement,
        runners=_runners(state, instance),
        open_tasks=state.open_tasks.get(instance.instance_id, 0),
        placed_at=instance.placed_at,
        ready_at=instance.ready_at,
        attempts=instance.attempts,
        retry_at=instance.retry_at,
        cause=instance.cause,
        experts=_experts(state.experts.get(instance.instance_id)),
    )


def _experts(experts: Experts | None) -> ExpertsView | None:
    if experts is None:
        return None
    return ExpertsView(
        epoch=experts.epoch,
        ranks=experts.ranks,
        layers=len(experts.maps),
        experts=experts.experts,
        slots=len(experts.maps[0]),
        balance=experts.balance,
        migration=_migration(experts.migration),
    )


def _migration(migration: Migration | None) -> MigrationView | None:
    if migration is None:
        return None
    return MigrationView(
        migration_id=migration.migration_id,
        epoch=migration.epoch,
        layer=migration.layers[migration.position].layer,
        stage=migration.stage,
        since=migration.since,
        done=migration.position,
        total=len(migration.layers),
    )


def progress(state: ClusterState, instance: Instance) -> Progress:
    """How far an instance has come: its download first, then the rank that is furthest behind."""
    phase, done, total = _phase(state, instance)
    return Progress(
        instance_id=instance.instance_id,
        model_id=instance.model_id,
        status=instance.status,
        phase=phase,
        done=done,
        total=total,
        cause=instance.cause,
    )


def _phase(state: ClusterState, instance: Instance) -> tuple[str, int, int]:
    if instance.status != "placed":
        return instance.status, 0, 0
    for download in state.downloads.values():
        if download.model_id == instance.model_id:
            return "downloading", download.done_bytes, download.total_bytes
    statuses = [runner.status for runner in state.instance_runners(instance)]
    last = min(statuses, key=_age)
    done, total = _layers(last)
    return status.name(last), done, total


_LIFE = (
    status.Failed,
    status.Spawning,
    status.Idle,
    status.Connecting,
    status.Connected,
    status.Loading,
    status.Loaded,
    status.WarmingUp,
    status.Ready,
    status.ShuttingDown,
    status.Shutdown,
)
"""Statuses in the order of a runner's life; a failed rank is further behind than any other."""


def _age(value: RunnerStatus) -> int:
    return _LIFE.index(type(value))


def _layers(value: RunnerStatus) -> tuple[int, int]:
    return (value.layers, value.total) if isinstance(value, status.Loading) else (0, 0)


def _runners(state: ClusterState, instance: Instance) -> list[RunnerView]:
    if instance.placement is None:
        return []
    pairs = zip(instance.placement.ranks, state.instance_runners(instance), strict=True)
    views: list[RunnerView] = []
    for rank, runner in pairs:
        layers, total = _layers(runner.status)
        views.append(
            RunnerView(
                runner_id=runner.runner_id,
                rank=rank.rank,
                node_id=runner.node_id,
                device_id=runner.device_id,
                status=status.name(runner.status),
                layers=layers,
                total=total,
                pid=runner.pid,
                cause=runner.status.cause if isinstance(runner.status, status.Failed) else None,
            )
        )
    return views
