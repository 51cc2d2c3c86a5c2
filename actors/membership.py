"""How a node takes part in its cluster, from its settings."""

from __future__ import annotations

import platform
from importlib import metadata

from actors.net.mesh_settings import MeshSettings
from actors.net.transport import Peer
from actors.settings import Settings


def mesh_settings(settings: Settings) -> MeshSettings:
    """What the settings say about the mesh."""
    return MeshSettings(
        cluster=settings.cluster,
        secret=settings.cluster_secret,
        bind=settings.cluster_host,
        port=settings.cluster_port,
        seeds=tuple(seed for seed in settings.cluster_peers.split(",") if seed),
        multicast=settings.cluster_multicast,
    )


def as_peer(settings: Settings, node_id: str) -> Peer:
    """What this node tells others of itself."""
    return Peer(
        node_id=node_id,
        name=settings.node_name or platform.node() or node_id,
        version=metadata.version("cuebook"),
        api_url=f"http://{settings.host}:{settings.api_port}",
        port=settings.cluster_port,
    )
