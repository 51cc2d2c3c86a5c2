"""Whom to dial, where and when: what is known of nodes that have no link yet. Pure; the caller has the time.

Of two nodes the one with the smaller id dials. A dial that fails is tried again after a jittered, growing
pause, at once where the node announces itself anew; a refused one waits long, until it is at another place:
nothing changes by itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from random import Random

from actors.net.greeting import Address

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
REFUSED_PAUSE_S = 30.0
MAX_NODES = 2_000
"""Beacons are not authenticated: whatever is announced, no more than this is remembered."""
_PLACES = 8  # addresses kept for each node: a machine's interfaces


def pause_after(failures: int, random: Random) -> float:
    """Seconds to wait after so many failures in a row: doubled each time, between half and one and a half."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10)) * random.uniform(0.5, 1.5)


@dataclass
class _Node:
    places: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # the last one heard first
    failures: int = 0
    due: float = 0.0
    dialling: bool = False
    refused: bool = False
    moved: bool = False  # it has announced itself at another place since it was dialled


class AddressBook:
    """The nodes that were heard of, by beacon, greeting or a peer."""

    def __init__(self, me: str, random: Random) -> None:
        self._me = me
        self._random = random
        self._nodes: dict[str, _Node] = {}

    def heard(self, address: Address, *, announced: bool, now: float) -> None:
        """``address`` is where a node may be. ``announced`` by itself just now, not by hearsay."""
        if address.node_id == self._me:
            return
        node = self._nodes.get(address.node_id)
        if node is None:
            if len(self._nodes) >= MAX_NODES:
                del self._nodes[next(iter(self._nodes))]
            node = self._nodes[address.node_id] = _Node()
        place = address.host, address.port
        new = place not in node.places
        if announced:
            node.places = [place, *(other for other in node.places if other != place)][:_PLACES]
        elif new and len(node.places) < _PLACES:
            node.places.append(place)
        if announced and new:
            node.moved, node.refused = True, False
        if announced and not node.refused:
            node.due = min(node.due, now)

    def due(self, now: float, linked: Container[str]) -> list[str]:
        """The nodes to dial now; each counts as being dialled until `failed` or `reached`."""
        found: list[str] = []
        for node_id, node in self._nodes.items():
            mine = self._me < node_id and node_id not in linked
            if mine and not node.dialling and node.places and node.due <= now:
                node.dialling, node.moved = True, False
                found.append(node_id)
        return found

    def places(self, node_id: str) -> list[tuple[str, int]]:
        """Where the node may be, the likeliest first; IPv4 first, as the address that everybody can use."""
        node = self._nodes.get(node_id)
        return sorted(node.places, key=lambda place: ":" in place[0]) if node else []

    def failed(self, node_id: str, now: float, *, refused: bool = False) -> int:
        """A dial failed everywhere. Returns how many did in a row."""
        node = self._nodes.get(node_id)
        if node is None:
            return 0
        refused = refused and not node.moved
        node.dialling, node.refused = False, refused
        node.failures += 1
        node.due = now + (REFUSED_PAUSE_S if refused else pause_after(node.failures, self._random))
        return node.failures

    def reached(self, node_id: str, now: float) -> None:
        """The node is linked; where the link breaks, dial again after a short pause."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.dialling = node.refused = False
            node.failures = 0
            node.due = now

    def parted(self, node_id: str, now: float) -> None:
        """The link to the node broke."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.due = now + pause_after(0, self._random)

    def displaced(self, node_id: str, place: tuple[str, int]) -> None:
        """At ``place`` there is now the node ``node_id``: forget that others were there."""
        for other_id, node in list(self._nodes.items()):
            if other_id != node_id and place in node.places:
                node.places.remove(place)
                if not node.places and not node.dialling:
                    del self._nodes[other_id]


def sharable(addresses: Iterable[Address], host: str) -> list[Address]:
    """Those of ``addresses`` that mean the same to a peer at ``host``: no loopback, none with a scope."""
    return [
        address
        for address in addresses
        if "%" not in address.host and (is_loopback(host) or not is_loopback(address.host))
    ]


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of the machine itself."""
    return host.startswith("127.") or host in ("::1", "localhost")
