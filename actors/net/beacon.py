"""The multicast beacon: "a node of this cluster is here", every second on every interface.

A beacon is a magic, 8 bytes that tell the cluster (`greeting.tag_of`), the mesh port and the node's id, 64
bytes at most. It proves nothing: it only says where a greeting may be worth while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from actors.net.interfaces import Interface, with_scope

MAGIC = b"CUEBOOK1"
GROUP_V4 = "239.255.67.66"
"""Administratively scoped (RFC 2365): not routed beyond the site."""
GROUP_V6 = "ff12::c0e:b00c"
"""Transient, link-local scope (RFC 4291)."""
_HEAD = struct.Struct(">8s8sHB")
_MAX_ID = 64

logger = logging.getLogger(__name__)


class Beacon(NamedTuple):
    """What a beacon says."""

    cluster: bytes
    node_id: str
    port: int


def encode_beacon(beacon: Beacon) -> bytes:
    """The bytes of a beacon."""
    node_id = beacon.node_id.encode()
    return _HEAD.pack(MAGIC, beacon.cluster, beacon.port, len(node_id)) + node_id


def decode_beacon(data: bytes) -> Beacon | None:
    """The beacon in a datagram; None where it is none: anybody may send anything."""
    if len(data) < _HEAD.size:
        return None
    magic, cluster, port, size = _HEAD.unpack_from(data)
    node_id = data[_HEAD.size :]
    if magic != MAGIC or not 0 < size <= _MAX_ID or len(node_id) != size or not port:
        return None
    try:
        return Beacon(cluster, node_id.decode(), port)
    except UnicodeDecodeError:
        return None


class BeaconSockets:
    """Sockets on the multicast groups, on the interfaces that there are at the time."""

    def __init__(self, port: int, families: Iterable[socket.AddressFamily]) -> None:
        self._port = port
        self.receivers = {family: made for family in families if (made := _receiver(family, port))}

    def join(self, found: Iterable[Interface]) -> None:
        """Listen on each of the interfaces ``found``; those already joined stay so."""
        for interface in found:
            receiver = self.receivers.get(interface.family)
            if receiver is not None:
                with contextlib.suppress(OSError):  # joined already, or an interface without multicast
                    receiver.setsockopt(*_membership(interface))

    def send(self, data: bytes, interface: Interface) -> None:
        """Send a beacon on one interface. Raises OSError where it can't send multicast."""
        with socket.socket(interface.family, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            if interface.family == socket.AF_INET:
                sender.setsockopt(
                    socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface.address)
                )
                sender.bind((interface.address, 0))
                sender.sendto(data, (GROUP_V4, self._port))
            else:
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, interface.number)
                sender.sendto(data, (GROUP_V6, self._port, 0, interface.number))

    def close(self) -> None:
        """Free the sockets."""
        for receiver in self.receivers.values():
            receiver.close()


class BeaconListener(asyncio.DatagramProtocol):
    """Passes each beacon on with the address it came from."""

    def __init__(self, heard: Callable[[Beacon, str], None]) -> None:
        self._heard = heard

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """A datagram came."""
        beacon = decode_beacon(data)
        if beacon is not None:
            self._heard(beacon, with_scope(addr))  # pyright: ignore[reportArgumentType]


def _receiver(family: socket.AddressFamily, port: int) -> socket.socket | None:
    """A socket on the port, shared with the machine's other nodes; None where the machine lacks IPv6."""
    try:
        receiver = socket.socket(family, socket.SOCK_DGRAM)
    except OSError:
        return None
    try:
        receiver.setblocking(False)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform != "win32":
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        receiver.bind(("", port))
    except OSError as error:
        receiver.close()
        logger.warning("No beacons are heard on UDP port %d (%s): %s", port, family.name, error)
        return None
    return receiver


def _membership(interface: Interface) -> tuple[int, int, bytes]:
    if interface.family == socket.AF_INET:
        request = socket.inet_aton(GROUP_V4) + socket.inet_aton(interface.address)
        return socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request
    group = socket.inet_pton(socket.AF_INET6, GROUP_V6) + struct.pack("@I", interface.number)
    return socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group
