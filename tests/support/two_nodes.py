"""Two nodes that the decider knows, and what its tests ask of them."""

from __future__ import annotations

from support.cluster import GIB, LIFE, NODE, Cluster, device

from events.base import Event
from events.values import Placement

OTHER = "node-b"


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def placement_of(cluster: Cluster, instance_id: str) -> Placement:
    placement = cluster.instance(instance_id).placement
    assert placement is not None
    return placement


def all_ready(cluster: Cluster, instance_id: str) -> str:
    """Bring every rank of an instance to Ready, rank by rank."""
    for rank in placement_of(cluster, instance_id).ranks:
        for each in LIFE:
            cluster.runner(each, runner_id=rank.runner_id)
    return instance_id


def start(cluster: Cluster, node_id: str = OTHER, memory: int = 32 * GIB) -> list[Event]:
    return cluster.node(node_id, devices=[device(memory=memory)], memory_available=memory)


def two_nodes() -> Cluster:
    """Two nodes that have the model and reach each other; the other one has more room."""
    cluster = Cluster()
    for node_id, memory in ((NODE, 16 * GIB), (OTHER, 32 * GIB)):
        start(cluster, node_id, memory)
        cluster.model(node_id=node_id)
    cluster.links(NODE, OTHER)
    cluster.links(OTHER, NODE)
    return cluster
