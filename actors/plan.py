"""`plan`: what a node's worker has to do next, as a pure function of state and of what it did already.

The order is the first seed's: cancel, shut down, create, download, connect, load, warm up, dispatch; experts
move before tasks are dispatched. Each is one small function. The worker runs `plan` when the state changed or
a deadline is due, never on a tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from actors import adoption
from events.experts import LayerMoves
from events.status import (
    Connected,
    Connecting,
    Failed,
    Idle,
    Loaded,
    Loading,
    Ready,
    Shutdown,
    ShuttingDown,
    Spawning,
    WarmingUp,
)
from events.values import Placement, Rank
from projections.state import ClusterState, Experts, Instance, Migration, Model, Runner, Task


@dataclass(slots=True)
class LocalRunner:
    """A runner that this worker supervises, with the orders that it was given."""

    instance_id: str
    placement: Placement
    ready: bool = False
    """Its instance was ready with it, whatever became of the log that said so."""
    model: Model | None = None
    """What it was told to load."""
    processes: list[Idle] = field(default_factory=list[Idle])
    incarnations: list[str] = field(default_factory=list[str])
    """Of the nodes; both of all ranks, by rank, as the log had them."""
    lost_at: float = 0.0
    """Unix seconds since which the log has not known it; 0 where it does."""
    offered: bool = False
    refused: bool = False
    """The master knows that it lives and has no use for it."""
    connecting: bool = False
    loading: bool = False
    warming: bool = False
    stopping: bool = False
    maps: list[list[int]] = field(default_factory=list[list[int]])
    """With EPLB: the maps that it was told to compute by."""
    staging: tuple[str, int] | None = None
    """Migration and layer that it was told to stage, and has not been told to apply or to drop."""

    def told(self, step: LoadModel | StageExperts | ApplyExperts | DropStaging) -> None:
        """Keep in mind what an order says of the model and its experts."""
        match step:
            case LoadModel():
                self.model = step.model
                self.maps = list(step.experts.maps) if step.experts else []
            case StageExperts():
                self.staging = (step.migration_id, step.moves.layer)
            case ApplyExperts():
                self.maps[step.moves.layer] = step.moves.map
                self.staging = None
            case DropStaging():
                self.staging = None


@dataclass(slots=True)
class LocalView:
    """What the worker knows beside the state: its runners, and which orders are on their way."""

    node_id: str
    now: float = 0.0
    runners: dict[str, LocalRunner] = field(default_factory=dict[str, LocalRunner])
    dispatched: dict[str, str] = field(default_factory=dict[str, str])
    """Tasks that a runner here has got, with that runner."""
    cancelling: set[str] = field(default_factory=set[str])
    fetching: set[str] = field(default_factory=set[str])
    spent: set[str] = field(default_factory=set[str])
    """Runners that were created once: an id is never used for a second process."""


class Step(msgspec.Struct, frozen=True):
    """Base of the steps."""


class CancelTask(Step, frozen=True):
    """Tell the runner to drop a task."""

    task: Task


class AbandonTask(Step, frozen=True):
    """Report a cancelled task as ended that no runner ever got."""

    task: Task


class ShutDownRunner(Step, frozen=True):
    """Stop a runner whose placement is void."""

    runner_id: str


class OfferRunner(Step, frozen=True):
    """Offer a ready runner that the log has lost, with its group: it may carry its instance on."""

    runner_id: str


class ReportLost(Step, frozen=True):
    """Report a runner as failed that the state has as running and this worker hasn't."""

    runner: Runner


class ReportNeverSpawned(Step, frozen=True):
    """Report a runner as shut down whose placement was void before it had a process."""

    runner_id: str


class CreateRunner(Step, frozen=True):
    """Start the process of a rank."""

    instance_id: str
    placement: Placement
    rank: Rank


class FetchModel(Step, frozen=True):
    """Bring a model's files to this node."""

    model: Model


class ConnectRunner(Step, frozen=True):
    """Let an idle runner join the other ranks of its group, which are found at ``hosts``, by rank."""

    rank: Rank
    placement: Placement
    hosts: list[str]


class LoadModel(Step, frozen=True):
    """Let an idle runner load its shard."""

    runner_id: str
    model: Model
    placement: Placement
    rank: Rank
    experts: Experts | None
    """With EPLB: where the log has them."""


class WarmUpRunner(Step, frozen=True):
    """Let a loaded runner compute for the first time."""

    runner_id: str


class StageExperts(Step, frozen=True):
    """Let all ranks receive the new experts of a layer, beside the live ones."""

    runner_id: str
    migration_id: str
    moves: LayerMoves


class ApplyExperts(Step, frozen=True):
    """Let all ranks compute by the map of a layer that is committed."""

    runner_id: str
    migration_id: str
    moves: LayerMoves
    epoch: int


class DropStaging(Step, frozen=True):
    """Let all ranks forget what is staged: its migration was given up."""

    runner_id: str
    migration_id: str


class Dispatch(Step, frozen=True):
    """Give a task to its runner."""

    task: Task


def plan(state: ClusterState, view: LocalView) -> list[Step]:
    """Every step that is due now, in the order of their importance."""
    return [
        *_cancel(state, view),
        *_shut_down(state, view),
        *_create(state, view),
        *_fetch(state, view),
        *_connect(state, view),
        *_load(state, view),
        *_warm_up(state, view),
        *_move_experts(state, view),
        *_dispatch(state, view),
    ]


def next_deadline(state: ClusterState, view: LocalView) -> float | None:
    """When `plan` must run again though nothing changed, in Unix seconds: for a download's next try, say.

    One that was due and was not made is wanted by nobody here; it is made once the state says otherwise.
    """
    retries = (
        download.retry_at
        for (node_id, _), download in state.downloads.items()
        if node_id == view.node_id and download.status == "failed"
    )
    return min((due for due in (*retries, *adoption.deadlines(view)) if due > view.now), default=None)


def _cancel(state: ClusterState, view: LocalView) -> Iterator[Step]:
    for task in state.tasks.values():
        if not task.cancelled or task.task_id in view.cancelling or not _is_here(state, view, task):
            continue
        yield CancelTask(task) if task.task_id in view.dispatched else AbandonTask(task)


def _shut_down(state: ClusterState, view: LocalView) -> Iterator[Step]:
    for runner_id, local in view.runners.items():
        known = state.runners.get(runner_id)
        if (known is not None and known.current) or local.stopping:
            continue
        fate = adoption.fate(state, view, runner_id) if known is None else "end"
        if fate == "offer":
            yield OfferRunner(runner_id)
        elif fate == "end":
            yield ShutDownRunner(runner_id)
    for runner in state.runners.values():
        if runner.node_id != view.node_id or runner.runner_id in view.runners:
            continue
        if isinstance(runner.status, Failed | Shutdown):
            continue
        if not isinstance(runner.status, Spawning):
            yield ReportLost(runner)
        elif not runner.current and runner.runner_id not in view.spent:
            yield ReportNeverSpawned(runner.runner_id)


def _create(state: ClusterState, view: LocalView) -> Iterator[Step]:
    for instance, rank in _local_ranks(state, view):
        assert instance.placement is not None  # _local_ranks yields placed instances only
        spawning = isinstance(state.runners[rank.runner_id].status, Spawning)
        if spawning and rank.runner_id not in view.spent:
            yield CreateRunner(instance.instance_id, instance.placement, rank)


def _fetch(state: ClusterState, view: LocalView) -> Iterator[Step]:
    wanted: set[str] = set()
    for instance, rank in _local_ranks(state, view):
        model = state.models[instance.model_id]
        idle = isinstance(state.runners[rank.runner_id].status, Idle)
        if not idle or view.node_id in model.paths or model.model_id in view.fetching | wanted:
            continue
        download = state.downloads.get((view.node_id, model.model_id))
        if download is None or (download.status == "failed" and 0 < download.retry_at <= view.now):
            wanted.add(model.model_id)
            yield FetchModel(model)


def _connect(state: ClusterState, view: LocalView) -> Iterator[Step]:
    """All files there, all ranks idle: they connect, the last one when all others are at it."""
    for instance, rank in _local_ranks(state, view):
        placement = instance.placement
        assert placement is not None
        local = view.runners.get(rank.runner_id)
        if len(placement.ranks) == 1 or local is None or local.connecting:
            continue
        others = [r.status for r in state.instance_runners(instance) if r.runner_id != rank.runner_id]
        last = rank.rank == len(placement.ranks) - 1
        gathered = all(isinstance(status, Connecting if last else Idle | Connecting) for status in others)
        idle = isinstance(state.runners[rank.runner_id].status, Idle)
        if idle and gathered and _files_everywhere(state, instance):
            yield ConnectRunner(rank, placement, _hosts(state, instance))


def _load(state: ClusterState, view: LocalView) -> Iterator[Step]:
    """A lone rank loads when it is idle, the ranks of a group when all are connected."""
    for instance, rank in _local_ranks(state, view):
        placement = instance.placement
        assert placement is not None
        own = state.runners[rank.runner_id].status
        runners = state.instance_runners(instance)
        gathered = all(isinstance(runner.status, Connected | Loading | Loaded) for runner in runners)
        due = isinstance(own, Idle) if len(runners) == 1 else isinstance(own, Connected) and gathered
        local = view.runners.get(rank.runner_id)
        model = state.models[instance.model_id]
        if due and local is not None and not local.loading and view.node_id in model.paths:
            experts = state.experts.get(instance.instance_id) if placement.eplb is not None else None
            yield LoadModel(rank.runner_id, model, placement, rank, experts)


def _warm_up(state: ClusterState, view: LocalView) -> Iterator[Step]:
    """The first forward pass is one of all ranks: rank 0 starts it when all others have entered it."""
    for instance, rank in _local_ranks(state, view):
        runners = state.instance_runners(instance)
        if rank.rank == 0:
            entered = all(isinstance(runner.status, WarmingUp | Ready) for runner in runners[1:])
        else:
            entered = all(isinstance(runner.status, Loaded | WarmingUp) for runner in runners)
        local = view.runners.get(rank.runner_id)
        loaded = isinstance(state.runners[rank.runner_id].status, Loaded)
        if local is not None and loaded and entered and not local.warming:
            yield WarmUpRunner(rank.runner_id)


def _move_experts(state: ClusterState, view: LocalView) -> Iterator[Step]:
    """Rank 0 speaks for its group: one layer at a time, each order once."""
    for instance in state.instances.values():
        placement = instance.placement
        if instance.status != "ready" or placement is None or placement.eplb is None:
            continue
        runner_id = placement.ranks[0].runner_id
        local = view.runners.get(runner_id)
        if local is not None and not local.stopping:
            yield from _move(runner_id, local, state.experts[instance.instance_id])


def _move(runner_id: str, local: LocalRunner, experts: Experts) -> Iterator[Step]:
    migration = experts.migration
    layer = migration.layers[migration.position].layer if migration is not None else -1
    if local.staging is not None and (migration is None or local.staging != (migration.migration_id, layer)):
        yield DropStaging(runner_id, local.staging[0])
    elif _differ(local.maps, experts.maps, layer if migration and migration.stage == "committed" else -1):
        # The log went back to a fork: the ranks compute by what is void now, and are to load what holds.
        yield ShutDownRunner(runner_id)
    elif migration is not None:
        yield from _go_on(runner_id, local, migration)


def _go_on(runner_id: str, local: LocalRunner, migration: Migration) -> Iterator[Step]:
    moves = migration.layers[migration.position]
    if migration.stage == "staging":
        if local.staging is None:
            yield StageExperts(runner_id, migration.migration_id, moves)
    elif local.maps[moves.layer] != moves.map:
        yield ApplyExperts(runner_id, migration.migration_id, moves, migration.epoch)


def _differ(told: list[list[int]], logged: list[list[int]], committed: int) -> bool:
    """Whether a layer's map is not the one that was told, but for the one that is to be applied."""
    if len(told) != len(logged):
        return True
    return any(told[layer] != logged[layer] for layer in range(len(logged)) if layer != committed)


def _dispatch(state: ClusterState, view: LocalView) -> Iterator[Step]:
    for task in state.tasks.values():
        if not task.cancelled and task.task_id not in view.dispatched and task.runner_id in view.runners:
            yield Dispatch(task)


def _is_here(state: ClusterState, view: LocalView, task: Task) -> bool:
    runner = state.runners.get(task.runner_id)
    return runner is not None and runner.node_id == view.node_id


def _files_everywhere(state: ClusterState, instance: Instance) -> bool:
    paths = state.models[instance.model_id].paths
    return all(runner.node_id in paths for runner in state.instance_runners(instance))


def _hosts(state: ClusterState, instance: Instance) -> list[str]:
    runners = state.instance_runners(instance)
    return [f"{state.nodes[runner.node_id].host}:{runner.port}" for runner in runners]


def _local_ranks(state: ClusterState, view: LocalView) -> Iterator[tuple[Instance, Rank]]:
    for instance in state.instances.values():
        for rank in instance.placement.ranks if instance.placement else ():
            status = state.runners[rank.runner_id].status
            if rank.node_id == view.node_id and not isinstance(status, Failed | Shutdown | ShuttingDown):
                yield instance, rank
