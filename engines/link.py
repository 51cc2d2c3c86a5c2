"""The side sockets of a group of ranks: one from every rank to rank 0, beside the engine's collectives.

They carry what collectives can't: who has come, what rank 0 is about to compute, and the end of a process,
which closes its sockets at once, while a collective that waits for it would wait for ever. A rank that has
nothing to compute sleeps on its socket. A frame is a 4-byte big-endian length and a MessagePack body.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from engines.contract import GroupLost, GroupSpec, LoadError
from events.experts import LayerMoves
from events.values import Cause

_HEADER = struct.Struct(">I")
_MAX_FRAME = 1 << 20
_GREETING_S = 2.0
"""Seconds in which whoever connects must say who it is."""
_RETRY_S = 0.05


class _Word(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """Base of what ranks tell each other."""


class Hello(_Word, frozen=True):
    """The first word of a rank to rank 0."""

    group_id: str
    rank: int


class Tried(_Word, frozen=True):
    """How an attempt of this rank went; ``why`` it failed, empty where it did not."""

    why: str


class Holds(_Word, frozen=True):
    """A rank has loaded the layers ``[start, end)``. ``experts`` is a digest of how experts are spread."""

    start: int
    end: int
    experts: str = ""


class Insert(_Word, frozen=True):
    """Queue a sequence with a prompt of ``tokens`` tokens, of which ``room`` more are drawn at most."""

    tokens: int
    room: int


class Remove(_Word, frozen=True):
    """Drop sequences."""

    uids: list[int]


class Step(_Word, frozen=True):
    """Compute one step now."""


class Warmed(_Word, frozen=True):
    """The warm-up is over."""


class Tokens(_Word, frozen=True):
    """What the next forward pass computes, row by row: where the other ranks need real tokens."""

    tokens: list[int]


class Stage(_Word, frozen=True):
    """Bring the experts of a layer beside the live ones. Tickets count what moves experts, from 1."""

    ticket: int
    moves: LayerMoves


class Apply(_Word, frozen=True):
    """Make the staged experts of a layer live, under a new map."""

    ticket: int
    layer: int
    epoch: int
    map: list[int]


class Drop(_Word, frozen=True):
    """Forget what is staged."""

    ticket: int


Word = Hello | Tried | Holds | Insert | Remove | Step | Warmed | Tokens | Stage | Apply | Drop


class Link:
    """The socket between rank 0 and another rank. `take` is called from one thread, `send` from one.

    ``lost`` is called once, on the link's own thread, when the other process is gone.
    """

    def __init__(
        self, sock: socket.socket, spec: GroupSpec, peer: int, lost: Callable[[Cause], None]
    ) -> None:
        self.peer = peer
        self._gone = Cause(
            code="ring_broken",
            message=f"Rank {peer} at {spec.hosts[peer]} is gone; rank {spec.rank} can't go on without it.",
            detail={"lost_rank": peer},
        )
        self._sock = sock
        self._lost = lost
        self._words: queue.SimpleQueue[Word | None] = queue.SimpleQueue()
        self._encoder = msgspec.msgpack.Encoder()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        threading.Thread(target=self._read, name=f"rank {peer}", daemon=True).start()

    def send(self, word: Word) -> None:
        """Tell the other rank. Raises `GroupLost`."""
        body = self._encoder.encode(word)
        try:
            self._sock.sendall(_HEADER.pack(len(body)) + body)
        except OSError as error:
            raise GroupLost(self._gone) from error

    def take(self, timeout: float | None = None) -> Word:
        """The other rank's next word; waits for it. Raises `GroupLost` when there will be none.

        Raises `queue.Empty` where it does not come within ``timeout`` seconds.
        """
        word = self._words.get(timeout=timeout)
        if word is None:
            self._words.put(None)
            raise GroupLost(self._gone)
        return word

    def close(self) -> None:
        """Close the socket: `take` raises on both sides."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            while (word := _receive(self._sock)) is not None:
                self._words.put(word)
        self._words.put(None)
        self._lost(self._gone)


def meet(spec: GroupSpec, lost: Callable[[Cause], None]) -> list[Link]:
    """Open the links: on rank 0 one to each other rank, in their order; on the others the one to rank 0.

    Rank 0 listens at its own address in ``spec.hosts``; afterwards the address is free again. Raises
    `LoadError` where the ranks don't meet within ``spec.timeout_s``.
    """
    deadline = time.monotonic() + spec.timeout_s
    if spec.rank == 0:
        found = _gather(spec, deadline)
        return [Link(found[rank], spec, rank, lost) for rank in sorted(found)]
    return [Link(_reach(spec, deadline), spec, 0, lost)]


def agree(spec: GroupSpec, links: Sequence[Link], why: str) -> str:
    """Why an attempt failed on any rank, the same answer on all of them; empty where it failed on none.

    Raises `LoadError` where a rank does not answer within ``spec.timeout_s``.
    """
    if spec.rank:
        links[0].send(Tried(why))
        return _tried(spec, links[0])
    answers = [why, *(_tried(spec, link) for link in links)]
    found = next((answer for answer in answers if answer), "")
    for link in links:
        link.send(Tried(found))
    return found


def check_ways(spec: GroupSpec, links: Sequence[Link], neighbour: int) -> None:
    """Can each rank listen at its address, and reach its ``neighbour`` in the ring? Raises `LoadError`.

    Asked beforehand because an engine that waits for a neighbour in vain can't be interrupted.
    """
    with listen(spec.hosts[spec.rank]):
        agree(spec, links, "")
        why = agree(spec, links, _knock(spec, neighbour))
    agree(spec, links, "")
    if why:
        raise unreachable(why)


def _knock(spec: GroupSpec, neighbour: int) -> str:
    host = spec.hosts[neighbour]
    try:
        with socket.create_connection(address(host), timeout=spec.timeout_s):
            return ""
    except OSError as error:
        return f"Rank {spec.rank} can't reach rank {neighbour} at {host}: {error}."


def _tried(spec: GroupSpec, link: Link) -> str:
    try:
        word = link.take(spec.timeout_s)
    except queue.Empty:
        raise unreachable(
            f"Rank {link.peer} did not answer rank {spec.rank} within {spec.timeout_s:g} s. "
            f"Is it another program that listens at {spec.hosts[link.peer]}?"
        ) from None
    assert isinstance(word, Tried)
    return word.why


def address(host: str) -> tuple[str, int]:
    """The parts of "10.0.0.2:40123". Raises `ValueError`."""
    ip, _, port = host.rpartition(":")
    return ip, int(port)


def unreachable(message: str) -> LoadError:
    """The error of ranks that don't meet."""
    return LoadError(Cause(code="ring_unreachable", message=message))


def _gather(spec: GroupSpec, deadline: float) -> dict[int, socket.socket]:
    found: dict[int, socket.socket] = {}
    with listen(spec.hosts[0]) as listener:
        while len(found) < len(spec.hosts) - 1:
            missing = [rank for rank in range(1, len(spec.hosts)) if rank not in found]
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                names = ", ".join(f"{rank} ({spec.hosts[rank]})" for rank in missing)
                raise unreachable(
                    f"Rank 0 waited at {spec.hosts[0]} for {spec.timeout_s:g} s, but these ranks did not "
                    f"come: {names}. Check that their nodes can reach this address and port."
                ) from None
            rank = _greeted(sock, spec.group_id)
            if rank in missing:
                found[rank] = sock
            else:
                sock.close()
    return found


def listen(host: str) -> socket.socket:
    """A listener whose port can be bound again while its connections live. Raises `LoadError`."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address(host))
        listener.listen()
    except OSError as error:
        listener.close()
        raise unreachable(f"This rank can't listen at {host}: {error}.") from error
    return listener


def _greeted(sock: socket.socket, group_id: str) -> int:
    """The rank that has connected; -1 for a stranger, who is turned away."""
    sock.settimeout(_GREETING_S)
    try:
        word = _receive(sock)
    except (OSError, msgspec.DecodeError):
        return -1
    sock.settimeout(None)
    return word.rank if isinstance(word, Hello) and word.group_id == group_id else -1


def _reach(spec: GroupSpec, deadline: float) -> socket.socket:
    while True:
        left = deadline - time.monotonic()
        try:
            sock = socket.create_connection(address(spec.hosts[0]), timeout=max(0.001, left))
            break
        except OSError as error:
            if left <= _RETRY_S:
                raise unreachable(
                    f"Rank {spec.rank} can't reach rank 0 at {spec.hosts[0]}: {error}. "
                    "Check that the nodes reach each other and that no firewall is between them."
                ) from error
            time.sleep(_RETRY_S)
    sock.settimeout(None)
    body = msgspec.msgpack.encode(Hello(spec.group_id, spec.rank))
    sock.sendall(_HEADER.pack(len(body)) + body)
    return sock


_DECODER = msgspec.msgpack.Decoder(Word)


def _receive(sock: socket.socket) -> Word | None:
    """One word; None at the end. Raises `OSError`, and `msgspec.DecodeError` for what is none."""
    header = _exactly(sock, _HEADER.size)
    if header is None:
        return None
    (size,) = _HEADER.unpack(header)
    if size > _MAX_FRAME:
        raise msgspec.DecodeError(f"a frame of {size} bytes")
    body = _exactly(sock, size)
    return None if body is None else _DECODER.decode(body)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            return None
        data += part
    return data
