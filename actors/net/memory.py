"""Links in memory, with the semantics of the real ones: for tests and the simulator.

Everything happens in callbacks of the hub's clock: with `SystemClock` on its thread, with `ManualClock`
inside `advance`, so that a run is the same each time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from actors.clock import SYSTEM_CLOCK, Clock
from actors.net.on_sessions import OnSessions
from actors.net.outbox import MAX_BYTES, MAX_MESSAGES, Outbox
from actors.net.session import Session
from actors.net.transport import Handlers, LinkStats, Peer
from actors.net.wire import Assembler

logger = logging.getLogger(__name__)

REJOIN_S = 0.1
"""Seconds from a break until the two nodes try again."""


class MemoryHub:
    """The network between the nodes of a test.

    ``delay_s`` is the time a frame is under way; ``dead_s`` passes until a silent cut is noticed. What is
    under way at a break is lost. A simulation overrides `stuck` and `arrivals` with worse links.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        *,
        delay_s: float = 0.0,
        dead_s: float = 2.0,
        queue_messages: int = MAX_MESSAGES,
        queue_bytes: int = MAX_BYTES,
    ) -> None:
        self.clock = clock
        self.delay_s = delay_s
        self.dead_s = dead_s
        self.limits = (queue_messages, queue_bytes)
        self._nodes: dict[str, MemoryTransport] = {}
        self.lives: dict[frozenset[str], Life] = {}
        """The links that are up, by pair of nodes."""
        self._cut: dict[frozenset[str], object] = {}  # with what tells this cut from an earlier one
        self._stalled: set[str] = set()

    def cut(self, one: str, other: str) -> None:
        """Let nothing through between two nodes, silently: both notice after ``dead_s``."""
        pair = frozenset((one, other))
        mark = self._cut[pair] = object()
        life = self.lives.get(pair)
        if life is not None:
            why = f"nothing was heard from it for {self.dead_s:.1f} s"
            self.clock.call_later(self.dead_s, lambda: self._cut.get(pair) is mark and life.end(why))

    def heal(self, one: str, other: str) -> None:
        """Undo `cut`. A cut that was too short to be noticed only delays what was sent meanwhile."""
        pair = frozenset((one, other))
        self._cut.pop(pair, None)
        life = self.lives.get(pair)
        if life is not None:
            life.flush()
        self._try_later(pair, 0.0)

    def break_link(self, one: str, other: str) -> None:
        """Break the links of two nodes, as a reset does: both notice at once and come back."""
        life = self.lives.get(frozenset((one, other)))
        if life is not None:
            self.clock.call_later(0.0, lambda: life.end("the connection broke"))

    def stall(self, node_id: str) -> None:
        """Let a node take nothing: the queues to it fill."""
        self._stalled.add(node_id)

    def release(self, node_id: str) -> None:
        """Undo `stall`."""
        self._stalled.discard(node_id)
        for pair, life in list(self.lives.items()):
            if node_id in pair:
                life.flush()
        self._meet(node_id)

    def stuck(self, one: str, other: str) -> bool:
        """Whether nothing goes from ``one`` to ``other`` now."""
        return frozenset((one, other)) in self._cut or other in self._stalled

    def arrivals(self, lane: Lane) -> list[float]:
        """When a frame that is sent now arrives; no time: it is lost, several: it is doubled."""
        lane.free_at = max(lane.free_at, self.clock.monotonic() + self.delay_s)
        return [lane.free_at]

    def enter(self, node: MemoryTransport) -> None:
        """A node starts."""
        self._nodes[node.me.node_id] = node
        self._meet(node.me.node_id)

    def leave(self, node: MemoryTransport) -> None:
        """A node stops; its peers are told at once."""
        self._nodes.pop(node.me.node_id, None)
        for pair, life in list(self.lives.items()):
            if node.me.node_id in pair:
                self.clock.call_later(0.0, partial(life.farewell, "it left the cluster"))

    def parted(self, pair: frozenset[str]) -> None:
        """The links of two nodes are gone; they try again."""
        self.lives.pop(pair, None)
        self._try_later(pair, REJOIN_S)

    def _meet(self, node_id: str) -> None:
        for other in list(self._nodes):
            if other != node_id:
                self._try_later(frozenset((node_id, other)), 0.0)

    def _try_later(self, pair: frozenset[str], delay: float) -> None:
        self.clock.call_later(delay, lambda: self._try(pair))

    def _try(self, pair: frozenset[str]) -> None:
        if pair in self.lives or pair in self._cut or self._stalled & pair or not pair <= self._nodes.keys():
            return
        one, other = sorted(pair)
        life = self.lives[pair] = Life(self, self._nodes[one], self._nodes[other])
        life.begin()


class MemoryTransport(OnSessions):
    """A `transport.Transport` on a `MemoryHub`."""

    def __init__(self, hub: MemoryHub) -> None:
        super().__init__()
        self._hub = hub
        self._me: Peer | None = None
        self._running = False
        self._calls = threading.RLock()  # held while a handler runs, so that `stop` can wait for it

    @property
    def me(self) -> Peer:
        """The node itself, once started."""
        assert self._me is not None
        return self._me

    @property
    def running(self) -> bool:
        """True from `start` to `stop`."""
        return self._running

    def start(self, me: Peer, handlers: Handlers) -> None:
        """Enter the hub."""
        self._me, self.handlers, self._running = me, handlers, True
        self._hub.enter(self)

    def stop(self) -> None:
        """Leave the hub."""
        with self._calls:
            running, self._running = self._running, False
        if running:
            self._hub.leave(self)

    def links(self) -> dict[str, LinkStats]:
        """The hub's delay, there and back; no bandwidth."""
        return {node_id: LinkStats(2 * self._hub.delay_s, None) for node_id in list(self.sessions)}

    def within(self, call: Callable[[], object]) -> None:
        """Call a handler, unless the node has stopped."""
        with self._calls:
            if not self._running:
                return
            try:
                call()
            except Exception:
                logger.exception("A handler of node %s failed", self.me.node_id)


class Lane:
    """One link in one direction: an outbox at one end, an assembler at the other."""

    def __init__(self, life: Life, sender: MemoryTransport, receiver: MemoryTransport) -> None:
        self._life = life
        self._sender = sender
        self._receiver = receiver
        self._assembler = Assembler()
        self.free_at = 0.0
        """When the last frame arrives: none overtakes it."""
        self.outbox = Outbox(self._wake, *life.hub.limits)

    def flush(self) -> None:
        """Send what waits, unless nothing gets through."""
        hub = self._life.hub
        if self.outbox.overflowed:
            self._life.overflowed(self)
        while not hub.stuck(self._sender.me.node_id, self._receiver.me.node_id):
            ready = self.outbox.next_frame()
            if ready is None:
                return
            now = hub.clock.monotonic()
            for at in hub.arrivals(self):
                hub.clock.call_later(at - now, partial(self._arrive, ready))

    def _wake(self) -> None:
        self._life.hub.clock.call_later(0.0, self.flush)

    def _arrive(self, ready: bytes) -> None:
        session = self._life.session_at(self._receiver)
        self._receiver.within(lambda: session.feed(self._assembler, ready[0], ready[1:]))


class Life:
    """The links of two nodes, from their coming up to their breaking."""

    def __init__(self, hub: MemoryHub, one: MemoryTransport, other: MemoryTransport) -> None:
        self.hub = hub
        self._ends = ((one, other), (other, one))
        self._control = [Lane(self, *end) for end in self._ends]
        self._stream = [Lane(self, *end) for end in self._ends]
        self._open = {one.me.node_id, other.me.node_id}
        self._sessions = {
            near.me.node_id: Session(far.me, near.handlers, hub.clock, control.outbox, stream.outbox)
            for (near, far), control, stream in zip(self._ends, self._control, self._stream, strict=True)
        }

    def session_at(self, node: MemoryTransport) -> Session:
        """The session that ``node`` has."""
        return self._sessions[node.me.node_id]

    def begin(self) -> None:
        """Tell both that the other is up."""
        for near, far in self._ends:
            near.sessions[far.me.node_id] = self.session_at(near)
        for near, far in self._ends:
            near.within(partial(near.handlers.peer_up, far.me))

    def end(self, why: str) -> None:
        """Tell both that the other is down. Once."""
        for node_id in self._sessions:
            self.close(node_id, why)

    def close(self, node_id: str, why: str) -> None:
        """Tell one of them that the other is down. Once; the links are gone when both were told."""
        if node_id not in self._open:
            return
        self._open.discard(node_id)
        for near, far in self._ends:
            if near.me.node_id == node_id:
                self.session_at(near).end()
                near.sessions.pop(far.me.node_id, None)
                near.within(partial(near.handlers.peer_down, far.me.node_id, why))
        if not self._open:
            self.hub.parted(frozenset(self._sessions))

    def farewell(self, why: str) -> None:
        """End once what was sent has arrived."""
        self.flush_now()
        self.hub.clock.call_later(self.hub.delay_s, partial(self.end, why))

    def flush(self) -> None:
        """Send what waited while nothing got through."""
        for lane in (*self._control, *self._stream):
            self.hub.clock.call_later(0.0, lane.flush)

    def flush_now(self) -> None:
        """Send what is queued, as far as anything gets through."""
        for lane in (*self._control, *self._stream):
            lane.flush()

    def overflowed(self, lane: Lane) -> None:
        """One took its messages too slowly: the link is closed, the other link only where it was control."""
        why = "it took its messages too slowly and the queue to it overflowed"
        if lane in self._control:
            self.end(why)
        elif lane in self._stream and len(self._open) == len(self._ends):
            self._lose_stream(why)

    def _lose_stream(self, why: str) -> None:
        self._stream, lost_lanes = [Lane(self, *end) for end in self._ends], self._stream
        for (near, far), old, new in zip(self._ends, lost_lanes, self._stream, strict=True):
            old.outbox.close()
            self.session_at(near).stream = new.outbox
            near.within(partial(near.handlers.stream_lost, far.me.node_id, why))
