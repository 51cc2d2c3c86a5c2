"""The links between nodes over NATS, on the loop: presence, agreement on links, frames.

Every node publishes its presence. Where two hear each other, the smaller id proposes a *life* of their links,
the greater agrees; from then on packets of that life, and no other, carry frames. Either closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
from collections.abc import Awaitable, Callable

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from actors.clock import Clock
from actors.net.auth import Mode
from actors.net.greeting import PROTOCOL, Challenge, Myself, Terms, objection, tag_of
from actors.net.nats_lane import Arrival, Kind, Lane, Packet, decode_packet, since, stamp
from actors.net.refusals import Refusals
from actors.net.session import Session
from actors.net.transport import Handlers, Peer
from actors.net.wire import FrameKind, MalformedFrame, frame

logger = logging.getLogger(__name__)

BEAT_S = 0.5
DEAD_S = 2.0
_TICK_S = 0.25
_LAG_S = 1.0  # a loop that was kept from running for so long judges nobody before it has read what came
_FAREWELL_S = 0.5  # for what is queued when the node leaves
_EARLY = 1_000  # frames that may come before the links are agreed on


class _Pair:
    """The links with one peer."""

    def __init__(self, peer: Peer, process: str, life: bytes, lanes: list[Lane], session: Session) -> None:
        self.peer = peer
        self.process = process
        self.life = life
        self.lanes = lanes
        self.session = session


class _Proposal:
    """Links that the peer has not agreed to yet, and the frames that came before it said so."""

    def __init__(self, process: str) -> None:
        self.process = process
        self.life = secrets.token_bytes(8)
        self.early: list[tuple[int, Packet]] = []


class NatsHub:
    """Everything here runs on the loop's thread. Keeps ``sessions`` up to date, by the peers' ids."""

    def __init__(
        self,
        cluster: str,
        limits: tuple[int, int],
        connections: tuple[Client, Client],
        me: Peer,
        handlers: Handlers,
        sessions: dict[str, Session],
        clock: Clock,
    ) -> None:
        self._limits = limits
        self._connections = connections
        self._handlers = handlers
        self._sessions = sessions
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._terms = Terms(me, secrets.token_hex(8), cluster, Mode.OPEN)
        tag = tag_of(cluster)
        self._me = msgspec.msgpack.encode(Challenge(PROTOCOL, self._terms.process, tag, Mode.OPEN, me, b""))
        self._root = f"cuebook.{tag.hex()}"
        self._refusals = Refusals(handlers.refused)
        self._pairs: dict[str, _Pair] = {}
        self._proposals: dict[str, _Proposal] = {}
        self._heard: dict[str, float] = {}
        self._signals: asyncio.Queue[tuple[str, bytes, Callable[[], None] | None]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self) -> None:
        """Subscribe, and begin to be present."""
        control, stream = self._connections
        mine = f"{self._root}.to.{self._terms.me.node_id}"
        await _subscribe(control, f"{mine}.control", self._on_control)
        await _subscribe(stream, f"{mine}.stream", self._on_stream)
        await _subscribe(control, f"{self._root}.presence", self._on_presence)
        await asyncio.gather(control.flush(), stream.flush())
        self._tasks = [self._loop.create_task(self._send_signals()), self._loop.create_task(self._pulse())]

    async def stop(self) -> None:
        """Say goodbye and free everything."""
        self._stopping = True
        pairs = list(self._pairs.values())
        for pair in pairs:
            pair.lanes[0].outbox.put_last(frame(FrameKind.BYE))
        deadline = self._loop.time() + _FAREWELL_S
        waiting = [lane for pair in pairs for lane in pair.lanes]
        while self._loop.time() < deadline and not all(lane.outbox.empty for lane in waiting):
            await asyncio.sleep(0.005)
        for pair in list(self._pairs.values()):
            self._end(pair, "this node leaves")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections:
            with contextlib.suppress(Exception):  # the server may be gone: there is nobody to say goodbye to
                await asyncio.wait_for(connection.flush(), _FAREWELL_S)
            await connection.close()

    async def _pulse(self) -> None:
        beat_due = last = self._loop.time()
        while True:
            now = self._loop.time()
            if now >= beat_due:
                beat_due = now + BEAT_S - _TICK_S / 2
                self._beat()
            if now - last < _TICK_S + _LAG_S:
                self._judge(now)
            last = now
            await asyncio.sleep(_TICK_S)

    def _beat(self) -> None:
        self._publish(f"{self._root}.presence", self._me)
        for pair in self._pairs.values():
            pair.lanes[0].outbox.put_first(frame(FrameKind.BEAT, stamp()))

    def _judge(self, now: float) -> None:
        for node_id, pair in list(self._pairs.items()):
            silence = now - self._heard[node_id]
            if silence > DEAD_S:
                self._end(pair, f"nothing was heard from it for {silence:.1f} s")

    async def _on_presence(self, message: Msg) -> None:
        other = self._known(message.data)
        if other is None:
            return
        node_id = other.peer.node_id
        self._heard[node_id] = self._loop.time()
        pair = self._pairs.get(node_id)
        if pair is not None and pair.process != other.process:
            self._end(pair, "it was started anew")
        if node_id not in self._pairs and self._terms.me.node_id < node_id:
            proposal = self._proposals.get(node_id)
            if proposal is None or proposal.process != other.process:
                proposal = self._proposals[node_id] = _Proposal(other.process)
            self._signal(node_id, Kind.OPEN, proposal.life, body=self._me)

    def _known(self, data: bytes) -> Challenge | None:
        """Who speaks; None where it is this node, no node, or one that is refused."""
        try:
            other = msgspec.msgpack.decode(data, type=Challenge)
            why = objection(self._terms, other, set())
        except (msgspec.MsgspecError, Myself):
            return None
        if why:
            self._refusals.tell(other.peer.host, why)
        return None if why else other

    async def _on_control(self, message: Msg) -> None:
        self._on_packet(0, message.data)

    async def _on_stream(self, message: Msg) -> None:
        self._on_packet(1, message.data)

    def _on_packet(self, lane: int, data: bytes) -> None:
        packet = decode_packet(data)
        if packet is None or self._stopping:
            return
        pair = self._pairs.get(packet.sender)
        current = pair if pair is not None and pair.life == packet.life else None
        match packet.kind:
            case Kind.OPEN:
                self._opened_by(packet, current)
            case Kind.OPENED:
                self._agreed(packet)
            case Kind.CLOSE if current:
                self._end(current, "it closed the links", tell=False)
            case Kind.TAKEN if current:
                current.lanes[lane].taken(packet.number)
            case Kind.FRAME:
                self._on_frame(lane, packet, current)
            case _:
                pass

    def _opened_by(self, packet: Packet, current: _Pair | None) -> None:
        """A smaller id proposes links, perhaps again."""
        other = self._known(packet.body)
        if other is None:
            return
        pair = current or self._up(other, packet.life)
        self._signal(packet.sender, Kind.OPENED, packet.life, body=self._me, then=lambda: _start(pair))

    def _agreed(self, packet: Packet) -> None:
        proposal, other = self._proposals.get(packet.sender), self._known(packet.body)
        if proposal is None or other is None or proposal.life != packet.life:
            return
        del self._proposals[packet.sender]
        _start(self._up(other, packet.life))
        for lane, early in proposal.early:
            self._on_packet(lane, early.encode())

    def _on_frame(self, lane: int, packet: Packet, pair: _Pair | None) -> None:
        if pair is not None:
            self._take(pair, lane, packet)
            return
        proposal = self._proposals.get(packet.sender)
        if proposal is not None and proposal.life == packet.life and len(proposal.early) < _EARLY:
            proposal.early.append((lane, packet))
        else:
            self._signal(packet.sender, Kind.CLOSE, packet.life)

    def _take(self, pair: _Pair, number: int, packet: Packet) -> None:
        self._heard[packet.sender] = self._loop.time()
        lane = pair.lanes[number]
        match lane.arrived(packet.number):
            case Arrival.STALE:
                return
            case Arrival.GAP:
                self._end(pair, "some of its messages were lost on the way")
                return
            case Arrival.ANEW:
                self._stream_lost(pair, "messages overflowed on their way from it")
            case Arrival.NEXT:
                pass
        try:
            self._dispatch(pair, lane, packet.body[0], packet.body[1:])
        except (MalformedFrame, struct.error, IndexError) as error:
            self._end(pair, f"it sent {error}")
            return
        if lane.to_tell is not None and not pair.session.ended:
            self._signal(packet.sender, Kind.TAKEN, pair.life, lane=number, number=lane.to_tell)

    def _dispatch(self, pair: _Pair, lane: Lane, kind: int, body: bytes) -> None:
        match kind:
            case FrameKind.BEAT:
                lane.outbox.put_first(frame(FrameKind.ECHO, body))
            case FrameKind.ECHO:
                pair.session.timed(since(body))
            case FrameKind.BYE:
                self._end(pair, "it left the cluster", tell=False)
            case _:
                pair.session.feed(lane.assembler, kind, body)

    def _up(self, other: Challenge, life: bytes) -> _Pair:
        peer = other.peer
        if peer.node_id in self._pairs:
            self._end(self._pairs[peer.node_id], "it came back on new links", tell=False)
        control, stream = self._lane(0, peer.node_id, life), self._lane(1, peer.node_id, life)
        session = Session(peer, self._handlers, self._clock, control.outbox, stream.outbox)
        pair = _Pair(peer, other.process, life, [control, stream], session)
        self._pairs[peer.node_id], self._sessions[peer.node_id] = pair, session
        self._heard[peer.node_id] = self._loop.time()
        self._told(lambda: self._handlers.peer_up(peer))
        return pair

    def _lane(self, lane: int, node_id: str, life: bytes) -> Lane:
        subject, connection = self._subject(node_id, lane), self._connections[lane]
        me = self._terms.me.node_id

        async def publish(number: int, ready: bytes) -> None:
            await connection.publish(subject, Packet(Kind.FRAME, life, number, me, ready).encode())

        return Lane(
            publish,
            self._limits,
            lambda: self._overflowed(node_id, life, lane),
            lambda why: self._broken(node_id, life, why),
        )

    def _broken(self, node_id: str, life: bytes, why: str) -> None:
        pair = self._pairs.get(node_id)
        if pair is not None and pair.life == life:
            self._end(pair, why)

    def _overflowed(self, node_id: str, life: bytes, lane: int) -> None:
        why = "it took its messages too slowly and the queue to it overflowed"
        pair = self._pairs.get(node_id)
        if lane == 0 or pair is None or pair.life != life:
            self._broken(node_id, life, why)
            return
        pair.lanes[lane].renew()
        pair.session.stream = pair.lanes[lane].outbox
        pair.session.stream.put_first(frame(FrameKind.BEAT, stamp()))
        self._stream_lost(pair, why)

    def _stream_lost(self, pair: _Pair, why: str) -> None:
        self._told(lambda: self._handlers.stream_lost(pair.peer.node_id, why))

    def _end(self, pair: _Pair, why: str, *, tell: bool = True) -> None:
        node_id = pair.peer.node_id
        if pair.session.ended:
            return
        del self._pairs[node_id], self._sessions[node_id]
        pair.session.end()
        for lane in pair.lanes:
            lane.end()
        if tell:
            self._signal(node_id, Kind.CLOSE, pair.life)
        if not self._stopping:
            self._told(lambda: self._handlers.peer_down(node_id, why))

    def _signal(
        self,
        node_id: str,
        kind: Kind,
        life: bytes,
        *,
        lane: int = 0,
        number: int = 0,
        body: bytes = b"",
        then: Callable[[], None] | None = None,
    ) -> None:
        data = Packet(kind, life, number, self._terms.me.node_id, body).encode()
        self._signals.put_nowait((self._subject(node_id, lane), data, then))

    def _publish(self, subject: str, data: bytes) -> None:
        self._signals.put_nowait((subject, data, None))

    async def _send_signals(self) -> None:
        """In the order of their making, on the control connection."""
        while True:
            subject, data, then = await self._signals.get()
            try:
                await self._connections[0].publish(subject, data)
            except (nats.errors.Error, OSError) as error:  # not connected now: heart-beats begin anew
                logger.debug("NATS took no signal: %s", error)
            if then is not None:
                then()

    def _subject(self, node_id: str, lane: int) -> str:
        return f"{self._root}.to.{node_id}.{'stream' if lane else 'control'}"

    def _told(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("A handler of the transport failed")


def _start(pair: _Pair) -> None:
    for lane in pair.lanes:
        lane.start()


async def _subscribe(connection: Client, subject: str, take: Callable[[Msg], Awaitable[None]]) -> None:
    await connection.subscribe(subject, cb=take)  # pyright: ignore[reportUnknownMemberType]  (one untyped option)
