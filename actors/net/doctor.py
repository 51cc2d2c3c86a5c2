"""Why two nodes don't see each other: what was observed on this machine, in sentences. Pure.

`actors.net.probing` observes; `diagnose` does both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from actors.net.beacon import Beacon
from actors.net.greeting import tag_of
from actors.net.interfaces import Interface
from actors.net.mesh_settings import MeshSettings
from actors.net.observed import Answer, Observed
from actors.net.probing import LISTEN_S, observe
from actors.net.transport import Peer

Topic = Literal["security", "interfaces", "multicast", "port", "nodes", "nats"]


class Finding(Struct, frozen=True):
    """One thing that was found. ``level``: ``ok``, ``note`` (may be meant so) or ``problem``."""

    topic: Topic
    level: Literal["ok", "note", "problem"]
    text: str


def diagnose(settings: MeshSettings, me: Peer, *, listen_s: float = LISTEN_S) -> list[Finding]:
    """Look at the network as the node ``me`` would, for some seconds; the node may be running meanwhile.

    Sends beacons and greets the nodes that it hears and the seeds. Raises `TransportError` for settings with
    which no mesh can start.
    """
    return findings(asyncio.run(observe(settings, me, listen_s)), me)


def findings(seen: Observed, me: Peer) -> list[Finding]:
    """What the observations mean, the causes first."""
    return [
        *_security(seen.settings),
        *_interfaces(seen.settings, seen.interfaces),
        *_port(seen),
        *_multicast(seen),
        *_beacons(seen, me),
        *_nodes(seen, me),
    ]


def _security(settings: MeshSettings) -> Iterator[Finding]:
    if settings.open:
        yield Finding(
            "security",
            "problem",
            "No secret is set, so the mesh listens on loopback only and other machines can't join. "
            "Set the same cluster secret on all nodes.",
        )
    else:
        kind = "certificates" if settings.certificates else "a secret"
        yield Finding(
            "security", "ok", f"Nodes of cluster {settings.cluster!r} prove themselves with {kind}."
        )


def _interfaces(settings: MeshSettings, found: list[Interface]) -> Iterator[Finding]:
    outward = [interface for interface in found if not interface.loopback]
    if not outward:
        yield Finding(
            "interfaces",
            "problem",
            "No network interface but loopback has an address: connect this machine to the network.",
        )
    elif not settings.open and not settings.announced_on(found) and settings.multicast:
        listed = ", ".join(f"{interface.address} ({interface.name})" for interface in outward)
        yield Finding(
            "interfaces",
            "problem",
            f"The mesh is set to listen on {settings.bind}, which no interface has. There are {listed}.",
        )
    for interface in outward:
        yield Finding("interfaces", "ok", f"{interface.name} has the address {interface.address}.")


def _port(seen: Observed) -> Iterator[Finding]:
    port = seen.settings.port
    match seen.port:
        case "free":
            yield Finding(
                "port", "note", f"Nothing listens on the mesh port {port}: this node isn't running."
            )
        case "this node":
            yield Finding("port", "ok", f"This node answers on the mesh port {port}.")
        case why:
            yield Finding("port", "problem", why)


def _multicast(seen: Observed) -> Iterator[Finding]:
    if not seen.settings.multicast:
        yield Finding("multicast", "note", "Multicast is off: only the configured peers are dialled.")
    for interface, why in seen.looped.items():
        if not why:
            yield Finding("multicast", "ok", f"A beacon sent on {interface} came back.")
        else:
            yield Finding("multicast", "problem", f"Beacons don't work on {interface}: {why}")


def _beacons(seen: Observed, me: Peer) -> Iterator[Finding]:
    if not seen.settings.multicast:
        return
    ours = tag_of(seen.settings.cluster)
    others = {(host, beacon) for host, beacon in seen.beacons if beacon.node_id != me.node_id}
    foreign = sorted({host for host, beacon in others if beacon.cluster != ours})
    if foreign:
        yield Finding(
            "multicast",
            "note",
            f"Nodes of other clusters announce themselves at {', '.join(foreign)}. If one of them belongs to "
            f"{seen.settings.cluster!r}, its cluster name differs.",
        )
    if not any(beacon.cluster == ours for _, beacon in others):
        yield Finding(
            "multicast",
            "note",
            f"No beacon of another node of cluster {seen.settings.cluster!r} was heard. Where others run, "
            "the network between may not pass multicast: name one of them as a peer.",
        )


def _nodes(seen: Observed, me: Peer) -> Iterator[Finding]:
    for answer in seen.answers:
        place = f"{answer.host} port {answer.port}"
        if answer.peer is not None and answer.peer.node_id == me.node_id:
            yield Finding(
                "nodes",
                "problem",
                f"{answer.peer.name} at {place} has this node's own id ({me.node_id}): give each node a home "
                "directory of its own.",
            )
        elif answer.peer is not None:
            name, node_id, version = answer.peer.name, answer.peer.node_id, answer.peer.version
            yield Finding(
                "nodes", "ok", f"{name} ({node_id}) at {place} accepts this node; version {version}."
            )
        elif answer.refused:
            yield Finding("nodes", "problem", f"At {place}: {answer.why}")
        else:
            yield Finding("nodes", "problem", _unreached(seen, answer, place))


def _unreached(seen: Observed, answer: Answer, place: str) -> str:
    if any(_is_at(host, beacon, answer) for host, beacon in seen.beacons):
        return (
            f"Beacons arrive from {place}, but the port can't be reached ({answer.why}): a firewall there "
            f"blocks TCP port {answer.port}, or the node listens on another address."
        )
    return (
        f"Nothing answers at {place} ({answer.why}): check that the node runs, that the address is right and "
        f"that no firewall blocks TCP port {answer.port}."
    )


def _is_at(host: str, beacon: Beacon, answer: Answer) -> bool:
    return (host, beacon.port) == (answer.host, answer.port)
