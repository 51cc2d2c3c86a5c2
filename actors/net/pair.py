"""The two links with one peer, and the session on them."""

from __future__ import annotations

import msgspec

from actors.net.greeting import Address
from actors.net.link import Link
from actors.net.session import Session
from actors.net.wire import Assembler, FrameKind, MalformedFrame, frame

STREAM_BACK_S = 5.0
"""Seconds in which a broken stream link has to be back."""


class PairOwner:
    """Who is told; called on the loop's thread."""

    def pair_down(self, pair: Pair, why: str) -> None:
        """The control link ended, or the stream link can't be restored. Called once."""
        raise NotImplementedError

    def stream_lost(self, pair: Pair, why: str) -> None:
        """The stream link ended; the dialer makes a new one."""
        raise NotImplementedError

    def told_of(self, addresses: list[Address]) -> None:
        """The peer knows further nodes."""
        raise NotImplementedError


class Pair:
    """Owner of both links, and of the session's frames."""

    def __init__(
        self, session: Session, control: Link, stream: Link, *, life: str, dials: bool, owner: PairOwner
    ) -> None:
        self.session = session
        self.life = life
        self.dials = dials
        self.redialling = False
        self.control = control
        self.stream: Link | None = stream
        self._lost_at = 0.0
        self._assemblers = {control: Assembler(), stream: Assembler()}
        self._owner = owner

    def start(self) -> None:
        """Begin to read and write; measure."""
        for link in self.live_links():
            link.start(self)
            link.beat()
        if self.dials and self.stream:
            self.stream.probe()

    def restore(self, stream: Link) -> None:
        """Take a new stream link."""
        if self.stream is not None:
            self.stream.end("a new stream link took its place")
        self.stream = stream
        self._assemblers = {self.control: self._assemblers[self.control], stream: Assembler()}
        self.session.stream = stream.outbox
        stream.start(self)
        stream.beat()

    def live_links(self) -> list[Link]:
        """The links that there are."""
        return [self.control, self.stream] if self.stream else [self.control]

    def tell_of(self, addresses: list[Address]) -> None:
        """Tell the peer of further nodes."""
        if addresses:
            self.control.outbox.put_first(frame(FrameKind.PEERS, msgspec.msgpack.encode(addresses)))

    def judge(self, now: float, dead_s: float) -> None:
        """End what has been silent for too long."""
        for link in self.live_links():
            if now - link.heard > dead_s:
                link.end(f"nothing was heard from it for {now - link.heard:.1f} s")
        if self.stream is None and now - self._lost_at > STREAM_BACK_S:
            self.end(f"its stream link could not be restored within {STREAM_BACK_S:g} s")

    def end(self, why: str) -> None:
        """End both links; the owner is told once."""
        if self.session.ended:
            return
        self.session.end()
        for link in self.live_links():
            link.end(why)
        self._owner.pair_down(self, why)

    def received(self, link: Link, kind: int, body: bytes) -> None:
        """A frame of records or addresses came. Raises `MalformedFrame`."""
        if kind != FrameKind.PEERS:
            self.session.feed(self._assemblers[link], kind, body)
            return
        try:
            self._owner.told_of(msgspec.msgpack.decode(body, type=list[Address]))
        except msgspec.MsgspecError as error:
            raise MalformedFrame(f"addresses that can't be read: {error}") from error

    def round_trip(self, link: Link, seconds: float) -> None:
        """A heart-beat came back; the control link's is the measure."""
        if link is self.control:
            self.session.timed(seconds)

    def bandwidth(self, bytes_a_second: float) -> None:
        """The probe was measured."""
        self.session.probed(bytes_a_second)

    def ended(self, link: Link, why: str) -> None:
        """A link ended."""
        if link is self.control:
            self.end(why)
        elif link is self.stream and not self.session.ended:
            self.stream, self._lost_at = None, link.ended_at
            self._owner.stream_lost(self, why)
