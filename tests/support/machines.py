"""Nodes as a state has them, for placement."""

from __future__ import annotations

from support.cluster import GIB, device, engine

from events.values import EngineReport
from projections.state import Node


def machine(
    node_id: str,
    devices: dict[str, int],
    *engines: EngineReport,
    available: int = 64 * GIB,
    host: str = "",
    up: bool = True,
) -> Node:
    """A node with devices of so many bytes, by id. Unless given others, one engine computes on all."""
    return Node(
        node_id=node_id,
        incarnation="run-1",
        name=node_id,
        version="1",
        pid=1,
        platform="Linux",
        api_url="",
        host=host or node_id,
        devices=[device(device_id, memory) for device_id, memory in devices.items()],
        engines=list(engines) or [engine([*devices])],
        memory_total=64 * GIB,
        memory_available=available,
        disk_free=GIB,
        up=up,
    )
