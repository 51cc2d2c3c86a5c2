"""What can be set about the mesh, and what follows from it."""

from __future__ import annotations

from msgspec import Struct

from actors.net.addresses import is_loopback
from actors.net.certificates import Certificates
from actors.net.interfaces import Interface
from actors.net.outbox import MAX_BYTES, MAX_MESSAGES
from actors.net.transport import TransportError

DEFAULT_PORT = 52416


class Timing(Struct, frozen=True, kw_only=True):
    """Seconds between the mesh's doings."""

    beat_s: float = 0.5
    dead_s: float = 2.0
    """Without a frame for so long, a link is dead."""
    beacon_s: float = 1.0
    beacon_alone_s: float = 0.25
    """The pause between beacons while there is no peer."""


class MeshSettings(Struct, frozen=True, kw_only=True):
    """How a node takes part in the mesh."""

    cluster: str = "cuebook"
    secret: str = ""
    certificates: Certificates | None = None
    bind: str = ""
    """The address to listen on; empty: all addresses, or only loopback where there is no secret."""
    port: int = DEFAULT_PORT
    """The TCP port to listen on; 0 takes any free one."""
    seeds: tuple[str, ...] = ()
    """Nodes to begin with: ``host``, ``host:port`` or ``[ipv6]:port``."""
    multicast: bool = True
    beacon_port: int = DEFAULT_PORT
    """The UDP port of the beacons, the same on all nodes of the network."""
    queue_messages: int = MAX_MESSAGES
    queue_bytes: int = MAX_BYTES
    timing: Timing = Timing()

    @property
    def open(self) -> bool:
        """Whether anybody who can connect may join."""
        return not self.secret and self.certificates is None

    def hosts(self) -> list[str]:
        """The addresses to listen on. Raises `TransportError` where an open mesh would be reachable."""
        if self.open and self.bind and not is_loopback(self.bind):
            raise TransportError(
                f"The mesh won't listen on {self.bind} without a secret: anybody on the network could join "
                "the cluster. Set the same secret on all nodes, or give certificates, or bind 127.0.0.1."
            )
        if self.bind:
            return [self.bind]
        return ["127.0.0.1", "::1"] if self.open else ["0.0.0.0", "::"]

    def announced_on(self, found: list[Interface]) -> list[Interface]:
        """Those of this machine's interfaces to send and hear beacons on."""
        if not self.multicast:
            return []
        if self.bind not in ("", "0.0.0.0", "::"):
            return [interface for interface in found if interface.address == self.bind.partition("%")[0]]
        outward = [interface for interface in found if not interface.loopback]
        if outward and not self.open:
            return outward
        return [interface for interface in found if interface.loopback]
