"""The greeting of two nodes on a new link, pure: what is said, and the sentence with which one is refused.

The dialer says `Hello`, the acceptor answers `Challenge`, the dialer `Proof`, the acceptor `Welcome`; either
says `Refusal` and closes where it minds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

import msgspec
from msgspec import Struct

from actors.net.auth import Mode
from actors.net.transport import Peer

PROTOCOL = 1
"""The version of everything on the wire between nodes."""


class Lane(Enum):
    """What a link is for."""

    INTRODUCTION = "introduction"  # to learn who is there; closed after the greeting
    CONTROL = "control"
    STREAM = "stream"


class Address(Struct, frozen=True, array_like=True):
    """Where a node can be dialled."""

    node_id: str
    host: str
    port: int


class Hello(Struct, frozen=True, tag=True):
    """The dialer's opening. ``life`` is one for both links of a pair, ``process`` for all links of a run."""

    protocol: int
    process: str
    cluster: bytes
    mode: Mode
    lane: Lane
    life: str
    peer: Peer
    nonce: bytes

    @property
    def looks_around(self) -> bool:
        """Whether it is nobody's opening, who can't be dialled back: the doctor's, beside its own node."""
        return self.lane is Lane.INTRODUCTION and not self.peer.port


class Challenge(Struct, frozen=True, tag=True):
    """The acceptor's answer."""

    protocol: int
    process: str
    cluster: bytes
    mode: Mode
    peer: Peer
    nonce: bytes


class Proof(Struct, frozen=True, tag=True):
    """That the dialer has the secret; empty where there is none."""

    mac: bytes


class Welcome(Struct, frozen=True, tag=True):
    """That the acceptor has it too, and whom else it knows."""

    mac: bytes
    known: list[Address]


class Refusal(Struct, frozen=True, tag=True):
    """Why the link isn't made, for the other side to tell its people."""

    why: str


Greeting = Hello | Challenge | Proof | Welcome | Refusal


class Refused(Exception):
    """A link isn't made; the message is the sentence. ``by_peer``: the other side said so.

    ``node_id`` is who the other side said it is, where the dialer has heard that much.
    """

    def __init__(self, why: str, *, by_peer: bool = False) -> None:
        super().__init__(why)
        self.by_peer = by_peer
        self.node_id = ""


class Myself(Refused):
    """The link led back to where it began."""


def tag_of(cluster: str) -> bytes:
    """What tells clusters apart on one network: 8 bytes. It separates, it doesn't protect."""
    return hashlib.sha256(cluster.encode()).digest()[:8]


class Terms(NamedTuple):
    """What a node asks of those it links with."""

    me: Peer
    process: str
    cluster: str
    mode: Mode
    looks_around: bool = False
    """Whether it only greets, as the doctor does with the id of its node."""


def objection(terms: Terms, other: Hello | Challenge, names: Collection[str]) -> str | None:
    """Why ``terms`` don't allow a link with ``other``, or None. ``names`` are those in its certificate.

    Raises `Myself` where there is no other.
    """
    peer, mine = other.peer, terms.me
    if other.process == terms.process:
        raise Myself("the address is this node's own")
    who = f"node {peer.name} ({peer.node_id})"
    if other.protocol != PROTOCOL:
        return f"{who} speaks protocol {other.protocol}, this node {PROTOCOL}: run the same version on both."
    if other.cluster != tag_of(terms.cluster):
        return f"{who} belongs to another cluster than {terms.cluster!r}: give both the same cluster name."
    if release(peer.version) != release(mine.version):
        return f"{who} runs version {peer.version}, this node {mine.version}: run the same version on both."
    if other.mode is not terms.mode:
        return f"{who} is secured by {other.mode.value}, this node by {terms.mode.value}: set both alike."
    looks_around = other.looks_around if isinstance(other, Hello) else terms.looks_around
    if peer.node_id == mine.node_id and not looks_around:
        return f"{who} at another place has this node's own id: give each node a home directory of its own."
    if terms.mode is Mode.CERTIFICATES and peer.node_id not in names:
        shown = ", ".join(sorted(names)) or "no name"
        return f"{who} showed a certificate for {shown}: its node id must be a name in its certificate."
    return None


def no_secret(peer: Peer, cluster: str) -> str:
    """The sentence for a peer that failed to prove that it has the secret."""
    return (
        f"node {peer.name} ({peer.node_id}) doesn't have the secret of cluster {cluster!r}: "
        "set the same secret on both."
    )


def release(version: str) -> str:
    """The part of a version that nodes of one cluster must share: major and minor."""
    return ".".join(version.split(".")[:2])


def pack(greeting: Greeting) -> bytes:
    """The bytes of a part of the greeting."""
    return msgspec.msgpack.encode(greeting)


def unpack(data: bytes) -> Greeting:
    """The other way round. Raises `Refused` for bytes that are no greeting."""
    try:
        return msgspec.msgpack.decode(data, type=Greeting)
    except msgspec.MsgspecError as error:
        raise Refused(f"what it sent is no greeting of a Cuebook node ({error})") from error
