"""Looking at the network as a node would: interfaces, the own port, beacons there and back, greetings."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterable

import aiohttp
import msgspec

from actors.net.auth import Security, security
from actors.net.beacon import Beacon, BeaconListener, BeaconSockets, encode_beacon
from actors.net.dialling import new_client, open_channel
from actors.net.greeting import Lane, Refused, Terms, tag_of
from actors.net.handshake import greet
from actors.net.interfaces import Interface, interfaces
from actors.net.listener import listen
from actors.net.mesh_settings import MeshSettings
from actors.net.observed import Answer, Observed
from actors.net.seeds import parse_seed
from actors.net.transport import Peer, TransportError

LISTEN_S = 2.5
"""Seconds in which every running node announces itself at least twice."""


async def observe(settings: MeshSettings, me: Peer, listen_s: float) -> Observed:
    """Observe for ``listen_s`` seconds and some. Raises `TransportError` for impossible settings."""
    settings.hosts()
    own = security(settings.cluster, settings.secret, settings.certificates)
    guest = msgspec.structs.replace(me, port=0)  # nobody is to dial back
    terms = Terms(guest, secrets.token_hex(8), settings.cluster, own.mode, looks_around=True)
    seeds = [parse_seed(seed, settings.port) for seed in settings.seeds]
    looped, beacons = await _hear(settings, listen_s)
    heard = [
        (host, b.port)
        for host, b in beacons
        if b.cluster == tag_of(settings.cluster) and b.node_id != me.node_id
    ]
    async with new_client() as client:
        prober = _Prober(client, terms, own)
        port, process = await _port(settings, prober, me)
        answers = await prober.greet_all([*seeds, *heard])
        return Observed(
            settings=settings,
            interfaces=interfaces(),
            port=port,
            looped=looped,
            beacons=beacons,
            # Lists of peers are often the same on all nodes, and name this one too.
            answers=[answer for answer in answers if not process or answer.process != process],
        )


class _Prober:
    """Greets nodes to see what comes of it."""

    def __init__(self, client: aiohttp.ClientSession, terms: Terms, own: Security) -> None:
        self._client = client
        self._terms = terms
        self._own = own

    async def greet_all(self, places: Iterable[tuple[str, int]]) -> list[Answer]:
        unique = dict.fromkeys(places)
        return list(await asyncio.gather(*(self.greet(host, port) for host, port in unique)))

    async def greet(self, host: str, port: int) -> Answer:
        try:
            channel = await open_channel(self._client, self._own, host, port)
            try:
                greeted = await greet(channel, self._terms, self._own, Lane.INTRODUCTION, "")
            finally:
                channel.abort()
                await channel.close()
        except Refused as refused:
            by = "it refuses this node: " if refused.by_peer else ""
            return Answer(host=host, port=port, refused=True, why=f"{by}{refused}")
        except TimeoutError:
            return Answer(host=host, port=port, why="no answer in time")
        except OSError as error:
            return Answer(host=host, port=port, why=str(error))
        return Answer(host=host, port=port, peer=greeted.peer, process=greeted.process)


async def _port(settings: MeshSettings, prober: _Prober, me: Peer) -> tuple[str, str]:
    """What `Observed` says of the port, and which run of this node has it, if one has."""
    if settings.port == 0:
        return "free", ""
    try:
        for made in listen(settings.hosts(), settings.port):
            made.close()
    except TransportError as error:
        host = settings.hosts()[0]
        answer = await prober.greet("127.0.0.1" if host == "0.0.0.0" else host, settings.port)
        peer = answer.peer
        if peer is not None and peer.node_id == me.node_id:
            return "this node", answer.process
        if peer is not None:
            return f"{error} Node {peer.name} ({peer.node_id}) has it.", ""
        return f"{error} What has it answers: {answer.why}" if answer.refused else str(error), ""
    return "free", ""


async def _hear(settings: MeshSettings, listen_s: float) -> tuple[dict[str, str], list[tuple[str, Beacon]]]:
    """Send a marked beacon on each interface; listen for it and for others'."""
    found = settings.announced_on(interfaces())
    if not found:
        return {}, []
    loop = asyncio.get_running_loop()
    mark = secrets.token_bytes(8)
    heard: dict[tuple[str, Beacon], None] = {}
    sockets = BeaconSockets(settings.beacon_port, {interface.family for interface in found})
    listening = [
        (
            await loop.create_datagram_endpoint(
                lambda: BeaconListener(lambda beacon, host: heard.setdefault((host, beacon))), sock=made
            )
        )[0]
        for made in sockets.receivers.values()
    ]
    try:
        sockets.join(found)
        failures = {interface: _send(sockets, mark, interface) for interface in found}
        await asyncio.sleep(listen_s)
    finally:
        for transport in listening:
            transport.close()
    back = {beacon.node_id for _, beacon in heard if beacon.cluster == mark}
    looped = {
        _name(interface): why or _silence(settings, interface, back) for interface, why in failures.items()
    }
    return looped, [(host, beacon) for host, beacon in heard if beacon.cluster != mark]


def _send(sockets: BeaconSockets, mark: bytes, interface: Interface) -> str:
    """Why the beacon could not be sent; empty where it was."""
    if interface.family not in sockets.receivers:
        return "the UDP port of the beacons can't be opened."
    try:
        sockets.send(encode_beacon(Beacon(mark, _label(interface), 1)), interface)
    except OSError as error:
        return f"sending failed ({error})."
    return ""


def _silence(settings: MeshSettings, interface: Interface, back: set[str]) -> str:
    if _label(interface) in back:
        return ""
    return (
        f"what was sent did not come back. A firewall on this machine drops UDP port {settings.beacon_port}, "
        "or the interface passes no multicast."
    )


def _label(interface: Interface) -> str:
    return f"{interface.number}-{'v4' if interface.family == socket.AF_INET else 'v6'}-{interface.address}"[
        :64
    ]


def _name(interface: Interface) -> str:
    return f"{interface.name} ({interface.address})"
