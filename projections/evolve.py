"""`evolve`: the only thing that changes `ClusterState`. One function an event, no clock, no chance.

What follows from an event for other entities (a void placement takes its runners out of service, say)
happens here and nowhere else. What needs a decision (a lost node fails its tasks) is events of their own,
made by the decider.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from events import catalogue as ev
from events.base import Event
from events.status import Failed, Idle, Shutdown, Spawning
from projections import evolve_experts
from projections.state import ClusterState, Download, Instance, Link, Model, Node, Runner, Task

_replace = msgspec.structs.replace


class OutOfOrder(Exception):
    """An event whose position is not the next one: the stream has a gap or repeats itself."""


def apply(state: ClusterState, seq: int, epoch: int, at: float, event: Event) -> None:
    """Apply the event at position ``seq``. Raises `OutOfOrder` unless it is the next one."""
    if seq != state.seq + 1:
        raise OutOfOrder(f"event {seq} came after {state.seq}")
    evolve(state, event, at)
    state.seq = seq
    state.epoch = epoch
    state.at = at


def evolve(state: ClusterState, event: Event, at: float) -> None:
    """Change ``state`` as ``event``, which happened at ``at`` (Unix seconds), says."""
    _EVOLVE[type(event)](state, event, at)


def _epoch_started(state: ClusterState, event: ev.EpochStarted, at: float) -> None:
    state.epoch = event.epoch
    state.master = event.node_id


def _node_started(state: ClusterState, event: ev.NodeStarted, at: float) -> None:
    known = state.nodes.get(event.node_id)
    state.nodes[event.node_id] = Node(
        node_id=event.node_id,
        incarnation=event.incarnation,
        name=event.name,
        version=event.version,
        pid=event.pid,
        platform=event.platform,
        api_url=event.api_url,
        host=event.host,
        devices=event.devices,
        engines=event.engines,
        memory_total=event.memory_total,
        memory_available=event.memory_available,
        disk_free=known.disk_free if known else 0,
        up=True,
    )


def _node_stopped(state: ClusterState, event: ev.NodeStopped, at: float) -> None:
    node = state.nodes.get(event.node_id)
    if node is not None:
        state.nodes[event.node_id] = _replace(node, up=False)
    for key in [key for key in state.downloads if key[0] == event.node_id]:
        del state.downloads[key]
    for key in [key for key in state.links if event.node_id in key]:
        del state.links[key]


def _links_changed(state: ClusterState, event: ev.LinksChanged, at: float) -> None:
    for key in [key for key in state.links if key[0] == event.node_id]:
        del state.links[key]
    for link in event.links:
        state.links[event.node_id, link.node_id] = Link(latency_s=link.latency_s, bandwidth=link.bandwidth)


def _node_resources_changed(state: ClusterState, event: ev.NodeResourcesChanged, at: float) -> None:
    node = state.nodes.get(event.node_id)
    if node is not None:
        state.nodes[event.node_id] = _replace(
            node, memory_available=event.memory_available, disk_free=event.disk_free
        )


def _model_described(state: ClusterState, event: ev.ModelDescribed, at: float) -> None:
    known = state.models.get(event.model_id)
    paths = known.paths if known else {}
    state.models[event.model_id] = Model(
        model_id=event.model_id, card=event.card, source=event.source, paths=paths
    )


def _model_stored(state: ClusterState, event: ev.ModelStored, at: float) -> None:
    model = state.models.get(event.model_id)
    if model is not None:
        paths = {**model.paths, event.node_id: event.path}
        state.models[event.model_id] = _replace(model, paths=paths)
    state.downloads.pop((event.node_id, event.model_id), None)


def _model_gone(state: ClusterState, event: ev.ModelGone, at: float) -> None:
    model = state.models.get(event.model_id)
    if model is not None:
        paths = {node: path for node, path in model.paths.items() if node != event.node_id}
        state.models[event.model_id] = _replace(model, paths=paths)


def _download_started(state: ClusterState, event: ev.DownloadStarted, at: float) -> None:
    state.downloads[event.node_id, event.model_id] = Download(
        model_id=event.model_id, node_id=event.node_id, status="running", attempt=event.attempt
    )


def _download_progressed(state: ClusterState, event: ev.DownloadProgressed, at: float) -> None:
    key = (event.node_id, event.model_id)
    download = state.downloads.get(key)
    if download is not None:
        state.downloads[key] = _replace(download, done_bytes=event.done_bytes, total_bytes=event.total_bytes)


def _download_failed(state: ClusterState, event: ev.DownloadFailed, at: float) -> None:
    state.downloads[event.node_id, event.model_id] = Download(
        model_id=event.model_id,
        node_id=event.node_id,
        status="failed",
        attempt=event.attempt,
        cause=event.cause,
        retry_at=event.retry_at,
    )


def _instance_requested(state: ClusterState, event: ev.InstanceRequested, at: float) -> None:
    state.instances[event.instance_id] = Instance(
        instance_id=event.instance_id, model_id=event.model_id, settings=event.settings, retry_at=at
    )


def _instance_placed(state: ClusterState, event: ev.InstancePlaced, at: float) -> None:
    instance = state.instances[event.instance_id]
    state.instances[event.instance_id] = _replace(
        instance, status="placed", placement=event.placement, placed_at=at, retry_at=0.0
    )
    evolve_experts.new_runners(state, event.instance_id)
    for rank in event.placement.ranks:
        _forget_failed_download(state, rank.node_id, instance.model_id)
        state.runners[rank.runner_id] = Runner(
            runner_id=rank.runner_id,
            instance_id=event.instance_id,
            node_id=rank.node_id,
            device_id=rank.device_id,
            status=Spawning(),
            current=True,
        )


def _forget_failed_download(state: ClusterState, node_id: str, model_id: str) -> None:
    """A new placement is a new try to fetch what was given up."""
    download = state.downloads.get((node_id, model_id))
    if download is not None and download.status == "failed" and not download.retry_at:
        del state.downloads[node_id, model_id]


def _instance_ready(state: ClusterState, event: ev.InstanceReady, at: float) -> None:
    instance = state.instances[event.instance_id]
    state.instances[event.instance_id] = _replace(instance, status="ready", ready_at=at, cause=None)


def _instance_set_back(state: ClusterState, event: ev.InstanceSetBack, at: float) -> None:
    _void_placement(
        state,
        event.instance_id,
        status="waiting",
        attempts=event.attempt,
        retry_at=event.retry_at,
        cause=event.cause,
    )


def _instance_failed(state: ClusterState, event: ev.InstanceFailed, at: float) -> None:
    _void_placement(
        state,
        event.instance_id,
        status="failed",
        attempts=event.attempts,
        retry_at=0.0,
        cause=event.cause,
    )


def _instance_retried(state: ClusterState, event: ev.InstanceRetried, at: float) -> None:
    _void_placement(state, event.instance_id, status="waiting", attempts=0, retry_at=at)


def _instance_deleted(state: ClusterState, event: ev.InstanceDeleted, at: float) -> None:
    _retire_runners(state, state.instances.pop(event.instance_id))
    if event.instance_id in state.experts:
        del state.experts[event.instance_id]


def _void_placement(state: ClusterState, instance_id: str, **changes: Any) -> None:
    instance = state.instances[instance_id]
    _retire_runners(state, instance)
    state.instances[instance_id] = _replace(instance, placement=None, ready_at=0.0, **changes)


def _retire_runners(state: ClusterState, instance: Instance) -> None:
    """The runners of a void placement are no longer current; those that have ended leave the state."""
    for runner in state.instance_runners(instance):
        if isinstance(runner.status, Failed | Shutdown):
            del state.runners[runner.runner_id]
        else:
            state.runners[runner.runner_id] = _replace(runner, current=False)


def _runner_status_changed(state: ClusterState, event: ev.RunnerStatusChanged, at: float) -> None:
    runner = state.runners.get(event.runner_id)
    if runner is None:
        return
    status = event.status
    if not runner.current and isinstance(status, Failed | Shutdown):
        del state.runners[event.runner_id]
    elif isinstance(status, Idle):
        state.runners[event.runner_id] = _replace(
            runner, status=status, pid=status.pid, process_started_at=status.started_at, port=status.port
        )
    else:
        state.runners[event.runner_id] = _replace(runner, status=status)


def _task_created(state: ClusterState, event: ev.TaskCreated, at: float) -> None:
    state.tasks[event.task_id] = Task(
        task_id=event.task_id,
        request_id=event.request_id,
        index=event.index,
        instance_id=event.instance_id,
        runner_id=event.runner_id,
        model_id=event.model_id,
        kind=event.kind,
        sampling=event.sampling,
        api_node=event.api_node,
    )
    state.open_tasks[event.instance_id] = state.open_tasks.get(event.instance_id, 0) + 1


def _task_cancel_requested(state: ClusterState, event: ev.TaskCancelRequested, at: float) -> None:
    task = state.tasks.get(event.task_id)
    if task is not None:
        state.tasks[event.task_id] = _replace(task, cancelled=event.reason)


def _task_finished(state: ClusterState, event: ev.TaskFinished, at: float) -> None:
    task = _task_ended(state, event, at)
    instance = state.instances.get(task.instance_id) if task is not None else None
    if instance is not None and instance.attempts:
        # A finished task is the success that resets the count of failed placements.
        state.instances[instance.instance_id] = _replace(instance, attempts=0)


def _task_ended(
    state: ClusterState,
    event: ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled,
    at: float,
) -> Task | None:
    task = state.tasks.pop(event.task_id, None)
    if task is not None:
        left = state.open_tasks[task.instance_id] - 1
        if left:
            state.open_tasks[task.instance_id] = left
        else:
            del state.open_tasks[task.instance_id]
    return task


def _nothing(state: ClusterState, event: Event, at: float) -> None:
    """For events that are history only."""


_EVOLVE: dict[type[Event], Callable[[ClusterState, Any, float], object]] = {
    ev.EpochStarted: _epoch_started,
    ev.NodeStarted: _node_started,
    ev.NodeStopped: _node_stopped,
    ev.NodeResourcesChanged: _node_resources_changed,
    ev.LinksChanged: _links_changed,
    ev.PeerRefused: _nothing,
    ev.BranchRejected: _nothing,
    ev.ActorFailed: _nothing,
    ev.DeadLettersCounted: _nothing,
    ev.ModelDescribed: _model_described,
    ev.ModelStored: _model_stored,
    ev.ModelGone: _model_gone,
    ev.DownloadStarted: _download_started,
    ev.DownloadProgressed: _download_progressed,
    ev.DownloadFailed: _download_failed,
    ev.InstanceRequested: _instance_requested,
    ev.InstancePlaced: _instance_placed,
    ev.InstanceReady: _instance_ready,
    ev.InstanceSetBack: _instance_set_back,
    ev.InstanceFailed: _instance_failed,
    ev.InstanceRetried: _instance_retried,
    ev.InstanceDeleted: _instance_deleted,
    ev.RunnerStatusChanged: _runner_status_changed,
    ev.TaskCreated: _task_created,
    ev.TaskCancelRequested: _task_cancel_requested,
    ev.TaskFinished: _task_finished,
    ev.TaskFailed: _task_ended,
    ev.TaskCancelled: _task_ended,
    **evolve_experts.EVOLVE,
}
