"""Nodes: their start and end, and the one cascade that a lost node sets off."""

from __future__ import annotations

from actors.deciding.ends import end_service
from actors.refusal import Rejected
from events import catalogue as ev
from events import commands as cmd
from events.base import Event
from events.commands import Facts
from events.status import Failed
from events.values import Cause
from projections.state import ClusterState, Node

LINK_FACTOR = 4.0
"""A link's reading is logged when it moved by more than this factor: latencies of a LAN wander."""
MATERIAL_SHARE = 10
"""A memory reading is logged when it moved by more than one part in this many of the whole."""


def start_epoch(state: ClusterState, command: cmd.StartEpoch, facts: Facts) -> list[Event]:
    """Begin the next term. Its number is the one that the master already works under."""
    if facts.epoch <= state.epoch:
        raise Rejected(
            Cause(
                code="stale_epoch",
                message=f"Epoch {facts.epoch} can't follow epoch {state.epoch}.",
            )
        )
    return [ev.EpochStarted(epoch=facts.epoch, node_id=command.node_id, incarnation=command.incarnation)]


def node_started(state: ClusterState, command: cmd.ReportNodeStarted, facts: Facts) -> list[Event]:
    """Record the start; first the end of the earlier incarnation, if it died without saying so."""
    known = state.nodes.get(command.origin)
    if known is not None and known.up and known.incarnation == command.incarnation:
        return []
    events: list[Event] = []
    if known is not None and known.up:
        cause = Cause(
            code="node_died",
            message=f"Node {known.node_id} (pid {known.pid}) ended without a word and was started again.",
        )
        events.extend(_lose_node(state, known, cause, facts.now, clean=False))
    events.append(
        ev.NodeStarted(
            node_id=command.origin,
            incarnation=command.incarnation,
            name=command.name,
            version=command.version,
            pid=command.pid,
            platform=command.platform,
            api_url=command.api_url,
            host=command.host,
            devices=command.devices,
            engines=command.engines,
            memory_total=command.memory_total,
            memory_available=command.memory_available,
        )
    )
    # A new start may have healed what made them fail: an engine, a file, memory.
    events.extend(
        ev.InstanceRetried(instance_id=instance.instance_id, by=f"start of node {command.origin}")
        for instance in state.instances.values()
        if instance.status == "failed"
    )
    return events


def node_stopping(state: ClusterState, command: cmd.ReportNodeStopping, facts: Facts) -> list[Event]:
    """Record a clean end; what the node ran is placed again when a node can carry it."""
    node = state.nodes.get(command.origin)
    if node is None or not node.up or node.incarnation != command.incarnation:
        return []
    cause = Cause(code="node_stopped", message=f"Node {node.node_id} was stopped: {command.reason}.")
    return _lose_node(state, node, cause, facts.now, clean=True)


def node_lost(state: ClusterState, command: cmd.ReportNodeLost, facts: Facts) -> list[Event]:
    """The master no longer hears a node: what it ran is placed again on those that are left."""
    node = state.nodes.get(command.node_id)
    if node is None or not node.up or node.incarnation != command.incarnation:
        return []
    return _lose_node(state, node, command.cause, facts.now, clean=False)


def links(state: ClusterState, command: cmd.ReportLinks, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Log the ways of a node when it reaches others than before, or when one became much faster or slower."""
    node = state.nodes.get(command.origin)
    if node is None or not node.up:
        return []
    known = {to: link for (start, to), link in state.links.items() if start == command.origin}
    same = known.keys() == {link.node_id for link in command.links} and not any(
        _differs(known[link.node_id].latency_s, link.latency_s)
        or _differs(known[link.node_id].bandwidth, link.bandwidth)
        for link in command.links
    )
    return [] if same else [ev.LinksChanged(node_id=command.origin, links=command.links)]


def _differs(known: float, measured: float) -> bool:
    return measured > LINK_FACTOR * known or known > LINK_FACTOR * measured


def branch(state: ClusterState, command: cmd.ReportBranch, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Record what the losing side of a partition gave up."""
    return [
        ev.BranchRejected(
            node_id=command.origin,
            fork=command.fork,
            winner=command.winner,
            reason=command.reason,
            command_ids=command.command_ids,
        )
    ]


def refused_peer(state: ClusterState, command: cmd.ReportRefusedPeer, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Record who was turned away, and why."""
    return [ev.PeerRefused(node_id=command.origin, host=command.host, reason=command.reason)]


def _lose_node(state: ClusterState, node: Node, cause: Cause, now: float, *, clean: bool) -> list[Event]:
    """The cascade: the node's runners end, their tasks fail, their instances wait to be placed again.

    Losing a node is no fault of the instance: its failed attempts are not counted up.
    """
    events: list[Event] = []
    for runner in state.runners.values():
        if runner.node_id != node.node_id:
            continue
        status = Failed(phase=type(runner.status).__name__, cause=cause)
        events.append(
            ev.RunnerStatusChanged(runner_id=runner.runner_id, instance_id=runner.instance_id, status=status)
        )
    for instance in state.instances.values():
        ranks = instance.placement.ranks if instance.placement else []
        if any(rank.node_id == node.node_id for rank in ranks):
            events.extend(end_service(state, instance.instance_id, cause))
            events.append(
                ev.InstanceSetBack(
                    instance_id=instance.instance_id, cause=cause, attempt=instance.attempts, retry_at=now
                )
            )
    events.append(
        ev.NodeStopped(node_id=node.node_id, incarnation=node.incarnation, clean=clean, cause=cause)
    )
    return events


def resources(state: ClusterState, command: cmd.ReportResources, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Log a reading that could change a placement; let the others go."""
    node = state.nodes.get(command.origin)
    if node is None or not node.up:
        return []
    moved = abs(command.memory_available - node.memory_available)
    first = not node.disk_free and command.disk_free > 0
    if not first and moved * MATERIAL_SHARE <= node.memory_total:
        return []
    return [
        ev.NodeResourcesChanged(
            node_id=node.node_id,
            memory_available=command.memory_available,
            disk_free=command.disk_free,
        )
    ]


def actor(state: ClusterState, command: cmd.ReportActor, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Record a crash of an actor, or letters that reached a dead one."""
    if command.dead_letters:
        return [
            ev.DeadLettersCounted(
                node_id=command.origin,
                actor=command.actor,
                count=command.dead_letters,
                sample=command.error,
            )
        ]
    return [
        ev.ActorFailed(
            node_id=command.origin,
            actor=command.actor,
            error=command.error,
            action=command.action,
            restarts=command.restarts,
        )
    ]
