"""The interface of everything that carries messages between nodes.

A *peer* is another node with which this one has links: one for control, one for streams. Messages of one
lane arrive in the order they were sent, each at most once; what is under way when a link breaks is lost. So
whoever needs more (the ordered log does) numbers its messages and asks for the range it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from actors.deferred import Deferred

STREAM = "stream"
"""The topic that travels on the stream link; every other topic travels on the control link."""

MAX_TOPIC_BYTES = 255


class Peer(Struct, frozen=True, kw_only=True):
    """A node as others see it. ``host`` is filled in by whoever reached it; ``port`` is its mesh port."""

    node_id: str
    name: str
    version: str
    api_url: str
    host: str = ""
    port: int = 0
    seniority: float = 0.0


class LinkStats(Struct, frozen=True):
    """What was measured on the way to a peer; None where nothing was measured yet."""

    latency_s: float | None
    """Seconds of the shortest round trip among the last heart-beats: a busy machine makes no way longer."""
    bandwidth_bytes_s: float | None
    """Bytes a second that a short probe on the stream link reached, measured once after the link came up."""


class TransportError(Exception):
    """The transport can't start as it is set up; the message says why and what to do."""


class LinkLost(ConnectionError):
    """There is no link to the peer, or it broke before the answer came."""


class RequestFailed(Exception):
    """The peer's handler failed; the message is the sentence it failed with."""


class Handlers(Protocol):
    """Who is told. Called on the transport's thread, one call at a time; must not block."""

    def peer_up(self, peer: Peer) -> None:
        """Both links to ``peer`` are up. Comes once in each life of a control link, before its messages."""
        ...

    def peer_down(self, node_id: str, why: str) -> None:
        """The control link ended. Comes once after each `peer_up`; no message of that life comes after it."""
        ...

    def stream_lost(self, node_id: str, why: str) -> None:
        """The stream link broke while the peer stayed up: stream messages under way are lost.

        A new stream link is made by itself; where that fails for long, `peer_down` follows.
        """
        ...

    def message(self, node_id: str, topic: str, payload: bytes) -> None:
        """A message of a peer that is up."""
        ...

    def request(self, node_id: str, topic: str, payload: bytes) -> Deferred[bytes]:
        """A request of a peer that is up. The Deferred's value or error is sent back as the answer."""
        ...

    def refused(self, host: str, why: str) -> None:
        """Links with a node at ``host`` were refused, by it or by this one; ``why`` is a sentence.

        The same refusal is told once in ten minutes, however often it recurs; all in all a hundred are.
        """
        ...


class Transport(Protocol):
    """Links to all other nodes of the cluster. All methods may be called from any thread."""

    def start(self, me: Peer, handlers: Handlers) -> None:
        """Begin to find peers and to be found. Raises `TransportError`."""
        ...

    def stop(self) -> None:
        """Say goodbye to the peers and end; no handler is called once this has returned. Idempotent."""
        ...

    def send(self, node_id: str, topic: str, payload: bytes) -> bool:
        """Queue a message, without blocking. False where there is no link or where it just overflowed.

        A peer that takes its messages too slowly loses the link that overflows, and comes back.
        """
        ...

    def broadcast(self, topic: str, payload: bytes) -> None:
        """`send` to every peer that is up."""
        ...

    def request(self, node_id: str, topic: str, payload: bytes, timeout: float) -> Deferred[bytes]:
        """Ask a peer on the control link.

        The answer fails with `TimeoutError` after ``timeout`` seconds, with `LinkLost` as soon as the link is
        gone, with `RequestFailed` where the peer's handler failed.
        """
        ...

    def peers(self) -> list[Peer]:
        """The peers that are up, by node id."""
        ...

    def links(self) -> dict[str, LinkStats]:
        """What was measured, by node id of the peers that are up."""
        ...


def by_node_id(peers: Iterable[Peer]) -> list[Peer]:
    """``peers`` in the order of their ids."""
    return sorted(peers, key=lambda peer: peer.node_id)
