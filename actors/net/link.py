"""One link: a channel after its greeting, with its queue, its heart-beats and its measurements."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from typing import Protocol

from actors.net.channel import Channel
from actors.net.outbox import Outbox
from actors.net.wire import FRAME_BYTES, FrameKind, MalformedFrame, frame

PROBE_BYTES = 1024 * 1024
_STAMP = struct.Struct(">d")


class LinkOwner(Protocol):
    """Who takes what a link brings; called on the loop's thread."""

    def received(self, link: Link, kind: int, body: bytes) -> None:
        """A frame that isn't the link's own business. Raises `MalformedFrame`."""
        ...

    def round_trip(self, link: Link, seconds: float) -> None:
        """A heart-beat came back."""
        ...

    def bandwidth(self, bytes_a_second: float) -> None:
        """The probe was measured, by this side or the other."""
        ...

    def ended(self, link: Link, why: str) -> None:
        """The link is no more. Called once."""
        ...


class Link:
    """Sends what its outbox holds and reads what comes, until it ends."""

    def __init__(self, channel: Channel, new_outbox: Callable[[Callable[[], object]], Outbox]) -> None:
        self.heard = time.monotonic()
        self.ended_at = 0.0
        self._gone = asyncio.Event()
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._waiting = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._owner: LinkOwner | None = None
        self._probe: tuple[float, int] | None = None
        self._why = ""
        self.outbox = new_outbox(self._wake)

    def start(self, owner: LinkOwner) -> None:
        """Begin to send and to read."""
        self._owner = owner
        self.heard = time.monotonic()
        self._tasks = [self._loop.create_task(self._write()), self._loop.create_task(self._read(owner))]

    def beat(self) -> None:
        """Give a sign of life."""
        self.outbox.put_first(frame(FrameKind.BEAT, _STAMP.pack(time.monotonic())))

    def probe(self) -> None:
        """Send the filling by which the other side measures the bandwidth."""
        filling = bytes(FRAME_BYTES)
        for _ in range(PROBE_BYTES // FRAME_BYTES):
            self.outbox.put_first(frame(FrameKind.PROBE, filling))
        self.outbox.put_first(frame(FrameKind.PROBE_END))

    def end(self, why: str) -> None:
        """Break the link at once; the owner is told before this returns."""
        if self._why:
            return
        self._why, self.ended_at = why, time.monotonic()
        self.outbox.close()
        self._channel.abort()
        for task in self._tasks:
            task.cancel()
        self._gone.set()
        if self._owner is not None:
            self._owner.ended(self, why)

    async def closed(self) -> None:
        """Wait until the link has ended, its tasks are gone and its socket is free."""
        await self._gone.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._roused)

    def _roused(self) -> None:
        if self.outbox.overflowed:
            self.end("it took its messages too slowly and the queue to it overflowed")
        self._waiting.set()

    async def _write(self) -> None:
        try:
            while True:
                ready = self.outbox.next_frame()
                if ready is None:
                    await self._waiting.wait()
                    self._waiting.clear()
                else:
                    await self._channel.send(ready)
        except (ConnectionError, RuntimeError) as error:
            self.end(f"sending failed: {error}")

    async def _read(self, owner: LinkOwner) -> None:
        try:
            while True:
                data = await self._channel.receive()
                self.heard = time.monotonic()
                self._take(owner, data[0] if data else -1, data[1:])
        except (ConnectionError, RuntimeError) as error:
            self.end(str(error))
        except MalformedFrame as error:
            self.end(f"it sent {error}")

    def _take(self, owner: LinkOwner, kind: int, body: bytes) -> None:
        match kind:
            case FrameKind.BEAT:
                self.outbox.put_first(frame(FrameKind.ECHO, body))
            case FrameKind.ECHO:
                owner.round_trip(self, self.heard - _number(body))
            case FrameKind.PROBE | FrameKind.PROBE_END:
                self._measure(owner, kind, len(body))
            case FrameKind.PROBED:
                owner.bandwidth(_number(body))
            case FrameKind.BYE:
                self.end("it left the cluster")
            case _:
                owner.received(self, kind, body)

    def _measure(self, owner: LinkOwner, kind: int, size: int) -> None:
        """The first frame starts the watch: what follows it is what is measured."""
        if self._probe is None:
            self._probe = self.heard, 0
            return
        begun, sofar = self._probe
        self._probe = begun, sofar + size
        if kind == FrameKind.PROBE_END:
            speed = sofar / max(self.heard - begun, 1e-6)
            self._probe = None
            self.outbox.put_first(frame(FrameKind.PROBED, _STAMP.pack(speed)))
            owner.bandwidth(speed)


def _number(body: bytes) -> float:
    try:
        return _STAMP.unpack(body)[0]
    except struct.error as error:
        raise MalformedFrame(f"a time stamp of {len(body)} bytes") from error
