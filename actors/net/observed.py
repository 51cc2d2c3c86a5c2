"""What is observed to find out why two nodes don't see each other."""

from __future__ import annotations

from msgspec import Struct

from actors.net.beacon import Beacon
from actors.net.interfaces import Interface
from actors.net.mesh_settings import MeshSettings
from actors.net.transport import Peer


class Answer(Struct, frozen=True, kw_only=True):
    """What came of greeting a node: the peer, or why there is none; ``refused`` by a node that was there.

    ``process`` tells one run of a node from another.
    """

    host: str
    port: int
    peer: Peer | None = None
    process: str = ""
    refused: bool = False
    why: str = ""


class Observed(Struct, frozen=True, kw_only=True):
    """Everything `doctor.findings` needs."""

    settings: MeshSettings
    interfaces: list[Interface]
    port: str
    """``free``, ``this node``, or a sentence about what is wrong with the mesh port."""
    looped: dict[str, str]
    """For each interface, why a beacon sent on it didn't come back; empty where it did."""
    beacons: list[tuple[str, Beacon]]
    """Hosts and what they announced."""
    answers: list[Answer]
