"""One direction-pair of frames with one peer over NATS: numbered, and held back where the peer is slow.

NATS drops what a slow subscriber doesn't take and what is under way when a server dies. So frames carry a
number, a gap ends the links, and no more than `WINDOW` frames are under way untaken.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from enum import Enum, IntEnum
from typing import NamedTuple

from actors.net.outbox import Outbox
from actors.net.wire import Assembler

WINDOW = 128
"""Frames of at most 64 KiB."""
_TOLD_EVERY = 32  # frames taken until the sender is told
_HEAD = struct.Struct(">B8sQB")
_GENERATION = 1 << 48  # a frame's number is the lane's generation times this, and its place in it from 1


class Kind(IntEnum):
    """What a packet is."""

    FRAME = 0
    OPEN = 1  # the smaller id proposes a life of the links
    OPENED = 2  # the greater id agrees
    CLOSE = 3  # the life is over
    TAKEN = 4  # so many frames of the lane were taken


class Arrival(Enum):
    """What a frame's number says."""

    NEXT = "next"
    ANEW = "the first of a lane that begins anew"
    STALE = "of a lane that has begun anew since"
    GAP = "one before it is missing"


class Packet(NamedTuple):
    """What is published to one node."""

    kind: Kind
    life: bytes
    number: int
    sender: str
    body: bytes

    def encode(self) -> bytes:
        """The bytes to publish."""
        sender = self.sender.encode()
        return _HEAD.pack(self.kind, self.life, self.number, len(sender)) + sender + self.body


def decode_packet(data: bytes) -> Packet | None:
    """The packet in the bytes; None where they are none."""
    try:
        kind, life, number, size = _HEAD.unpack_from(data)
        start = _HEAD.size + size
        return Packet(Kind(kind), life, number, data[_HEAD.size : start].decode(), data[start:])
    except (struct.error, ValueError):
        return None


class Lane:
    """Control or stream: an outbox that is published frame by frame, and what is needed to take frames."""

    def __init__(
        self,
        publish: Callable[[int, bytes], Awaitable[None]],
        limits: tuple[int, int],
        overflowed: Callable[[], None],
        broken: Callable[[str], None],
    ) -> None:
        self.assembler = Assembler()
        self.outbox = Outbox(self._wake, *limits)
        self._limits = limits
        self._publish = publish
        self._overflowed = overflowed
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._sent = 0
        self._taken = 0  # by the peer
        self._received = 0

    def start(self) -> None:
        """Begin to publish, unless the lane has ended meanwhile."""
        if not self._over:
            self._task = self._task or self._loop.create_task(self._write())

    def end(self) -> None:
        """Publish no more."""
        self._over = True
        self.outbox.close()
        if self._task is not None:
            self._task.cancel()

    def renew(self) -> None:
        """Begin anew after an overflow: what is queued or under way is lost."""
        self.outbox.close()
        self.outbox = Outbox(self._wake, *self._limits)
        self._sent = self._taken = (self._sent // _GENERATION + 1) * _GENERATION
        self._ready.set()

    def taken(self, number: int) -> None:
        """The peer took all frames up to ``number``."""
        self._taken = max(self._taken, number)
        self._ready.set()

    def arrived(self, number: int) -> Arrival:
        """Count a frame that came."""
        generation, place = divmod(number, _GENERATION)
        current = self._received // _GENERATION
        if generation < current:
            return Arrival.STALE
        if generation > current and place == 1:
            self._received, self.assembler = number, Assembler()
            return Arrival.ANEW
        self._received += 1
        return Arrival.NEXT if number == self._received else Arrival.GAP

    @property
    def to_tell(self) -> int | None:
        """Up to which number frames came, when it is time to tell the peer."""
        return self._received if self._received % _GENERATION % _TOLD_EVERY == 0 else None

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._roused)

    def _roused(self) -> None:
        if self.outbox.overflowed:
            self._overflowed()
        self._ready.set()

    async def _write(self) -> None:
        while True:
            ready = self.outbox.next_frame() if self._sent - self._taken < WINDOW else None
            if ready is None:
                await self._ready.wait()
                self._ready.clear()
                continue
            self._sent += 1
            try:
                await self._publish(self._sent, ready)
            except Exception as error:
                self._broken(f"NATS took nothing: {error or type(error).__name__}")
                return


def stamp() -> bytes:
    """The time, for a heart-beat."""
    return struct.pack(">d", time.monotonic())


def since(sent: bytes) -> float:
    """Seconds since the `stamp`. Raises `struct.error`."""
    return time.monotonic() - struct.unpack(">d", sent)[0]
