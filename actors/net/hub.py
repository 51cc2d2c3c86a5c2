"""The mesh on its loop: makes pairs of links with every node of the cluster that is found, and keeps them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec

from actors.clock import Clock
from actors.net.addresses import AddressBook, sharable
from actors.net.auth import Security
from actors.net.beacon import Beacon, BeaconListener, BeaconSockets, encode_beacon
from actors.net.channel import Channel
from actors.net.dialling import HungUp, new_client, open_channel
from actors.net.greeting import Address, Lane, Myself, Refused, Terms, tag_of
from actors.net.handshake import Greeted, answer_greeting, greet
from actors.net.interfaces import Interface, interfaces
from actors.net.link import Link
from actors.net.listener import Listener, listen
from actors.net.mesh_settings import MeshSettings
from actors.net.outbox import Outbox
from actors.net.pair import Pair, PairOwner
from actors.net.refusals import Refusals
from actors.net.seeds import Seed, Seeds, parse_seed
from actors.net.session import Session
from actors.net.transport import Handlers, Peer
from actors.net.wire import FrameKind, frame

logger = logging.getLogger(__name__)

_TICK_S = 0.25
_LAG_S = 1.0  # a loop that was kept from running for so long judges nobody before it has read what came
_STREAM_DUE_S = 5.0  # in which the stream link has to follow the control link
_FAREWELL_S = 0.5  # for what is queued when the node leaves
_UNREACHABLE_AFTER = 5  # failed dials in a row before people are told


class Hub(PairOwner):
    """Everything here runs on the loop's thread. Keeps ``sessions`` up to date, by the peers' ids."""

    def __init__(
        self,
        settings: MeshSettings,
        own: Security,
        me: Peer,
        handlers: Handlers,
        sessions: dict[str, Session],
        clock: Clock,
        random: Random,
    ) -> None:
        self._sessions = sessions
        self._settings = settings
        self._own = own
        self._handlers = handlers
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pairs: dict[str, Pair] = {}
        self._book = AddressBook(me.node_id, random)
        self._seeds = Seeds([parse_seed(seed, settings.port) for seed in settings.seeds], random)
        self._refusals = Refusals(handlers.refused)
        self._half: dict[
            str, tuple[Link, float]
        ] = {}  # control links that wait for their stream link, by life
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._stopping = False
        tls = own.server
        self._listener = Listener(
            listen(settings.hosts(), settings.port), tls, self._accepted, self._refusals.tell
        )
        self._client = new_client()
        me = msgspec.structs.replace(me, port=self._listener.port)
        self._terms = Terms(me, secrets.token_hex(8), settings.cluster, own.mode)
        self.port = self._listener.port

    def start(self) -> None:
        """Begin to look for the others."""
        self._spawn(self._keep(self._pulse))
        if self._settings.multicast:
            self._spawn(self._keep(self._announce))

    async def stop(self) -> None:
        """Say goodbye and free everything."""
        self._stopping = True
        links = [link for pair in self._pairs.values() for link in pair.live_links()]
        for pair in self._pairs.values():
            pair.control.outbox.put_last(frame(FrameKind.BYE))
        deadline = self._loop.time() + _FAREWELL_S
        while self._loop.time() < deadline and not all(link.outbox.empty for link in links):
            await asyncio.sleep(0.005)
        for pair in list(self._pairs.values()):
            pair.end("this node leaves")
        for link, _ in self._half.values():
            link.end("this node leaves")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._closing, return_exceptions=True)
        await self._listener.close()
        await self._client.close()

    def pair_down(self, pair: Pair, why: str) -> None:
        """A peer is gone."""
        node_id = pair.session.peer.node_id
        del self._pairs[node_id], self._sessions[node_id]
        self._book.parted(node_id, self._loop.time())
        if not self._stopping:
            self._told(lambda: self._handlers.peer_down(node_id, why))

    def stream_lost(self, pair: Pair, why: str) -> None:
        """A peer's stream link broke."""
        if not self._stopping:
            self._told(lambda: self._handlers.stream_lost(pair.session.peer.node_id, why))

    def told_of(self, addresses: list[Address]) -> None:
        """A peer knows further nodes."""
        for address in addresses:
            self._book.heard(address, announced=False, now=self._loop.time())
        self._dial_due()

    async def _keep(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin ``work`` anew where it fails, as when the interfaces can't be listed for a moment."""
        while True:
            try:
                await work()
            except Exception:
                logger.exception("A part of the mesh failed; it begins anew")
                await asyncio.sleep(_TICK_S)

    async def _pulse(self) -> None:
        """Heart-beats, deaths and dials that are due."""
        beat_due = last = self._loop.time()
        while True:
            await asyncio.sleep(_TICK_S)
            now = self._loop.time()
            if now >= beat_due:
                beat_due = now + self._settings.timing.beat_s - _TICK_S / 2
                self._beat()
            if now - last < _TICK_S + _LAG_S:
                self._judge()
            last = now
            self._dial_due()

    def _beat(self) -> None:
        for pair in self._pairs.values():
            for link in pair.live_links():
                link.beat()

    def _judge(self) -> None:
        now = self._loop.time()
        for pair in list(self._pairs.values()):
            pair.judge(now, self._settings.timing.dead_s)
        for life, (link, since) in list(self._half.items()):
            if now - since > _STREAM_DUE_S:
                del self._half[life]
                link.end("its stream link did not follow")

    async def _announce(self) -> None:
        """Beacons on all interfaces that there are at the time."""
        sockets = BeaconSockets(self._settings.beacon_port, (socket.AF_INET, socket.AF_INET6))
        listening = [
            (
                await self._loop.create_datagram_endpoint(
                    lambda: BeaconListener(self._beacon_heard), sock=made
                )
            )[0]
            for made in sockets.receivers.values()
        ]
        data = encode_beacon(Beacon(tag_of(self._settings.cluster), self._terms.me.node_id, self.port))
        timing = self._settings.timing
        try:
            while True:
                self._announce_on(sockets, data, self._settings.announced_on(interfaces()))
                await asyncio.sleep(timing.beacon_s if self._pairs else timing.beacon_alone_s)
        finally:
            for transport in listening:
                transport.close()

    def _announce_on(self, sockets: BeaconSockets, data: bytes, found: list[Interface]) -> None:
        sockets.join(found)
        for interface in found:
            try:
                sockets.send(data, interface)
            except OSError as error:  # an interface without multicast, or one that has just gone
                logger.debug("No beacon on %s: %s", interface.name, error)

    def _beacon_heard(self, beacon: Beacon, host: str) -> None:
        if beacon.cluster == tag_of(self._settings.cluster):
            address = Address(beacon.node_id, host, beacon.port)
            self._book.heard(address, announced=True, now=self._loop.time())
            self._dial_due()

    def _dial_due(self) -> None:
        now = self._loop.time()
        for node_id in self._book.due(now, self._pairs):
            self._spawn(self._dial(node_id))
        for seed in self._seeds.due(now, self._pairs):
            self._spawn(self._ask(seed))
        for pair in self._pairs.values():
            if pair.dials and pair.stream is None and not pair.redialling:
                pair.redialling = True
                self._spawn(self._redial_stream(pair))

    async def _dial(self, node_id: str) -> None:
        """Try each place where the node may be, until it is linked: a stranger may have got one of them."""
        refused, doubt = False, "is a firewall in between?"
        for host, port in self._book.places(node_id):
            try:
                if await self._dial_at(node_id, host, port):
                    return
            except Refused as refusal:
                if not refused:
                    self._refusals.tell(host, str(refusal), by_peer=refusal.by_peer)
                refused = True
                if refusal.node_id == node_id:
                    break
            except (OSError, TimeoutError) as error:
                if isinstance(error, HungUp):
                    doubt = "does it accept this node's certificate or secret?"
                logger.debug("Dialling %s at %s port %d failed: %s", node_id, host, port, error)
        failures = self._book.failed(node_id, self._loop.time(), refused=refused)
        if failures == _UNREACHABLE_AFTER and not refused:
            places = ", ".join(f"{host} port {port}" for host, port in self._book.places(node_id))
            host = places.partition(" ")[0]
            self._refusals.tell(host, f"node {node_id} can't be reached at {places}: {doubt}")

    async def _dial_at(self, node_id: str, host: str, port: int) -> bool:
        life = secrets.token_hex(8)
        control, greeted = await self._open(host, port, Lane.CONTROL, life)
        if greeted.peer.node_id != node_id:
            control.end("another node is there")
            self._met(greeted)
            return False
        try:
            stream, _ = await self._open(host, port, Lane.STREAM, life)
        except BaseException:
            control.end("its stream link could not be made")
            raise
        self._up(greeted.peer, control, stream, life, dials=True)
        return True

    async def _open(self, host: str, port: int, lane: Lane, life: str) -> tuple[Link, Greeted]:
        channel = await open_channel(self._client, self._own, host, port)
        try:
            greeted = await greet(channel, self._terms, self._own, lane, life)
        except BaseException:
            channel.abort()
            await channel.close()
            raise
        link = self._link(channel)
        closing = self._loop.create_task(link.closed())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return link, greeted

    async def _ask(self, seed: Seed) -> None:
        """Ask who is at a seed's address; the smaller of the two then dials, as always."""
        node_id: str | None = None
        try:
            link, greeted = await self._open(seed.host, seed.port, Lane.INTRODUCTION, "")
            link.end("introduced")
            node_id = greeted.peer.node_id
            self._met(greeted)
        except Myself:
            self._seeds.is_me(seed)
            return
        except Refused as refused:
            self._refusals.tell(seed.host, str(refused), by_peer=refused.by_peer)
        except (OSError, TimeoutError) as error:
            logger.debug("Seed %s port %d: %s", seed.host, seed.port, error)
        self._seeds.asked(seed, node_id, self._loop.time())
        self._dial_due()

    def _met(self, greeted: Greeted) -> None:
        peer, now = greeted.peer, self._loop.time()
        self._book.displaced(peer.node_id, (peer.host, peer.port))
        self._book.heard(Address(peer.node_id, peer.host, peer.port), announced=True, now=now)
        for address in greeted.known:
            self._book.heard(address, announced=False, now=now)

    async def _redial_stream(self, pair: Pair) -> None:
        peer = pair.session.peer
        try:
            stream, _ = await self._open(peer.host, peer.port, Lane.STREAM, pair.life)
            if pair.session.ended:
                stream.end("the peer is down")
            else:
                pair.restore(stream)
        except (Refused, OSError, TimeoutError) as error:
            logger.debug("No new stream link to %s: %s", peer.node_id, error)
            await asyncio.sleep(_TICK_S)
        finally:
            pair.redialling = False

    async def _accepted(self, channel: Channel) -> None:
        """A node dialled; returns once its link is gone."""
        try:
            greeted = await answer_greeting(channel, self._terms, self._own, self._known)
        except Myself:
            return
        except Refused as refused:
            self._refusals.tell(channel.host, str(refused), by_peer=refused.by_peer)
            return
        except (OSError, TimeoutError):
            return
        if greeted.lane is Lane.INTRODUCTION:
            if greeted.peer.port:  # else it only looks around, and nobody is to dial back
                self._met(greeted)
                self._dial_due()
            return
        link = self._link(channel)
        self._joined(greeted, link)
        try:
            await link.closed()
        finally:
            link.end("this node leaves")

    def _joined(self, greeted: Greeted, link: Link) -> None:
        peer, life = greeted.peer, greeted.life
        pair = self._pairs.get(peer.node_id)
        if greeted.lane is Lane.CONTROL:
            self._half[life] = link, self._loop.time()
        elif life in self._half:
            control, _ = self._half.pop(life)
            self._up(peer, control, link, life, dials=False)
        elif pair is not None and pair.life == life:
            pair.restore(link)
        else:
            link.end("a stream link without its control link")

    def _up(self, peer: Peer, control: Link, stream: Link, life: str, *, dials: bool) -> None:
        if peer.node_id in self._pairs:
            self._pairs[peer.node_id].end("it came back on new links")
        session = Session(peer, self._handlers, self._clock, control.outbox, stream.outbox)
        pair = Pair(session, control, stream, life=life, dials=dials, owner=self)
        self._pairs[peer.node_id], self._sessions[peer.node_id] = pair, session
        self._book.reached(peer.node_id, self._loop.time())
        self._told(lambda: self._handlers.peer_up(peer))
        pair.start()
        pair.tell_of(self._known(peer.host))
        news = [Address(peer.node_id, peer.host, peer.port)]
        for other in self._pairs.values():
            if other is not pair:
                other.tell_of(sharable(news, other.session.peer.host))

    def _known(self, host: str) -> list[Address]:
        peers = [pair.session.peer for pair in self._pairs.values()]
        return sharable([Address(peer.node_id, peer.host, peer.port) for peer in peers], host)

    def _link(self, channel: Channel) -> Link:
        settings = self._settings
        return Link(channel, lambda wake: Outbox(wake, settings.queue_messages, settings.queue_bytes))

    def _told(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("A handler of the mesh failed")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("A task of the mesh failed", exc_info=task.exception())
