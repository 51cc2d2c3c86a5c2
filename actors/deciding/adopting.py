"""Adoption: a runner, or a group of them, that the log has lost carries its instance on."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from actors.candidates import overcommitted
from actors.refusal import Rejected
from events import catalogue as ev
from events import commands as cmd
from events.base import Event
from events.commands import Facts
from events.status import Ready
from events.values import Cause, ModelSource, Placement
from projections.state import ClusterState, Instance


def adopt(state: ClusterState, command: cmd.ReportAdoptable, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Let runners that lived through a partition or a lost master carry on; their instance has no other.

    Nothing is loaded twice: a placement elsewhere that is not ready yet gives way. Where they don't fit any
    more they are refused, and the log has the reason.
    """
    instance = state.instances.get(command.instance_id)
    offered = command.placement
    placed = instance.placement if instance is not None else None
    if placed is not None and _runners(placed) == _runners(offered):
        return []
    misfit = _misfit(state, instance, command)
    if instance is None or misfit:
        runners = ", ".join(_runners(offered))
        message = f"{runners} of {command.instance_id} can't carry it on: {misfit}."
        raise Rejected(Cause(code="not_adopted", message=message))
    placement = msgspec.structs.replace(offered, attempt=1)
    return [
        ev.InstanceRetried(instance_id=instance.instance_id, by=_who(command)),
        ev.InstancePlaced(instance_id=instance.instance_id, placement=placement, candidates=[]),
        *_running(command),
        ev.InstanceReady(instance_id=instance.instance_id, load_s=0.0),
    ]


def _runners(placement: Placement) -> list[str]:
    return [rank.runner_id for rank in placement.ranks]


def _who(command: cmd.ReportAdoptable) -> str:
    n_ranks = len(command.placement.ranks)
    lives = "runner lives" if n_ranks == 1 else f"group of {n_ranks} runners lives"
    return f"node {command.origin}, whose {lives}"


def _running(command: cmd.ReportAdoptable) -> Iterator[Event]:
    for rank in command.placement.ranks:
        known = command.processes[rank.rank : rank.rank + 1]
        for status in (*known, Ready()):
            yield ev.RunnerStatusChanged(
                runner_id=rank.runner_id, instance_id=command.instance_id, status=status
            )


def _misfit(state: ClusterState, instance: Instance | None, command: cmd.ReportAdoptable) -> str:
    """Why runners can't carry their instance on; empty where they can."""
    if instance is None:
        return "it is not wanted any more"
    if instance.status == "ready":
        return "it is ready elsewhere"
    if command.placement.eplb is not None:
        return "with EPLB their experts may be where a part of the log had put them that is void now"
    model = state.models[instance.model_id]
    if command.card is not None and command.card != model.card:
        return f"{model.model_id} is another model by now"
    if command.source is not None and _is_other(command.source, model.source):
        return f"the files of {model.model_id} come from elsewhere by now"
    return _missing(state, command) or overcommitted(state, instance, command.placement)


def _is_other(loaded: ModelSource, known: ModelSource) -> bool:
    """Directories say nothing: each node may have the same files in another one."""
    return "directory" not in (loaded.kind, known.kind) and loaded != known


def _missing(state: ClusterState, command: cmd.ReportAdoptable) -> str:
    ranks = command.placement.ranks
    if ranks[0].node_id != command.origin:
        return f"{command.origin} does not have rank 0"
    for rank in ranks:
        node = state.nodes.get(rank.node_id)
        if node is None or not node.up:
            return f"{rank.node_id}, which has rank {rank.rank}, is not up"
        if command.incarnations and command.incarnations[rank.rank] != node.incarnation:
            return f"{rank.node_id}, which had rank {rank.rank}, was started anew"
        if rank.runner_id in state.runners:
            return f"{rank.runner_id}, rank {rank.rank}, is being shut down"
    return ""
