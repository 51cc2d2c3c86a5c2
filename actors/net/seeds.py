"""Static addresses to begin with, where multicast doesn't reach: ``host``, ``host:port`` or ``[v6]:port``."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from random import Random

from actors.net.addresses import LONGEST_PAUSE_S, pause_after
from actors.net.transport import TransportError

ANSWERED_PAUSE_S = LONGEST_PAUSE_S
_NAME = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?")


def parse_seed(text: str, default_port: int) -> tuple[str, int]:
    """Host and port. Raises `TransportError`."""
    host, port = text.strip(), ""
    if host.startswith("["):
        host, _, port = host[1:].partition("]")
        port = port.removeprefix(":")
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    port = port or str(default_port)
    if not (_is_host(host) and port.isdecimal() and 0 < int(port) < 65536):
        raise TransportError(f"The peer {text!r} is no address; write host, host:port or [ipv6]:port.")
    return host, int(port)


def _is_host(text: str) -> bool:
    if ":" not in text:
        return _NAME.fullmatch(text) is not None
    try:
        return bool(IPv6Address(text))
    except AddressValueError:
        return False


@dataclass
class Seed:
    """One address, and which node was found there."""

    host: str
    port: int
    node_id: str = ""
    failures: int = 0
    due: float = 0.0
    asking: bool = False
    mine: bool = False


class Seeds:
    """Which seeds to ask who they are, and when. Pure; the caller has the time."""

    def __init__(self, places: Iterable[tuple[str, int]], random: Random) -> None:
        self._random = random
        self._seeds = [Seed(host, port) for host, port in dict.fromkeys(places)]

    def due(self, now: float, linked: Container[str]) -> list[Seed]:
        """Those to ask now: their node has no link. Each counts as being asked until `asked`."""
        found = [
            seed
            for seed in self._seeds
            if not (seed.mine or seed.asking or seed.node_id in linked) and seed.due <= now
        ]
        for seed in found:
            seed.asking = True
        return found

    def asked(self, seed: Seed, node_id: str | None, now: float) -> None:
        """``seed`` answered as ``node_id``, or didn't."""
        seed.asking = False
        seed.node_id = node_id or seed.node_id
        seed.failures = 0 if node_id else seed.failures + 1
        # A node that answered has been told of us; the links follow. Ask again only where they don't.
        seed.due = now + (ANSWERED_PAUSE_S if node_id else pause_after(seed.failures, self._random))

    def is_me(self, seed: Seed) -> None:
        """``seed`` is this node: lists are often the same on all nodes."""
        seed.asking, seed.mine = False, True
