"""How a node takes part in its cluster, from its settings."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

from actors.net.certificates import Certificates, load
from actors.net.mesh_settings import MeshSettings
from actors.net.transport import Peer, TransportError
from actors.settings import Settings
from events.ids import fresh

_CERTIFICATE_SETTINGS = ("cluster_authority", "cluster_certificate", "cluster_key")
_AN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def mesh_settings(settings: Settings) -> MeshSettings:
    """What the settings say about the mesh. Raises `TransportError` where they contradict each other."""
    return MeshSettings(
        cluster=settings.cluster,
        secret=settings.cluster_secret,
        certificates=_certificates(settings),
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


def id_of(settings: Settings) -> str:
    """The id that the node of this home has or, where it was never started, that it could have.

    Where others know it by a certificate, a new node takes the first name in it that can be an id. Raises
    `TransportError` for certificates that are no good, or that name another node.
    """
    found = _certificates(settings) if settings.cluster and not settings.cluster_nats else None
    names = load(found).names if found else ()
    if settings.node_id_path.exists():
        node_id = settings.node_id_path.read_text().strip()
    else:
        node_id = next(filter(_AN_ID.fullmatch, names), "") if found else fresh("node")
    if found and node_id not in names:
        needed = (
            f"this node has the id {node_id}, which must be the common name or a DNS name in it."
            if node_id
            else "none can be a node's id: 1 to 64 letters, digits, dots, hyphens and underscores."
        )
        raise TransportError(
            f"The certificate {found.certificate} is for {', '.join(names) or 'nobody'}; {needed}"
        )
    return node_id


def _certificates(settings: Settings) -> Certificates | None:
    given = {name: getattr(settings, name) for name in _CERTIFICATE_SETTINGS}
    if not any(given.values()):
        return None
    if settings.cluster_secret:
        named = " and ".join(name for name, path in given.items() if path)
        raise TransportError(
            f"cluster_secret and {named} are both set: nodes prove themselves by one. Remove the other."
        )
    if missing := [name for name, path in given.items() if not path]:
        raise TransportError(
            f"{', '.join(_CERTIFICATE_SETTINGS)} belong together: set {' and '.join(missing)} as well."
        )
    authority, certificate, key = (Path(path).expanduser() for path in given.values())
    return Certificates(authority=authority, certificate=certificate, key=key)
