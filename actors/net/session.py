"""One life of the links with one peer, whatever carries the frames: messages, requests and answers."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable

from actors.clock import Clock, Timer
from actors.deferred import Deferred
from actors.net.outbox import Outbox
from actors.net.transport import STREAM, Handlers, LinkLost, LinkStats, Peer, RequestFailed
from actors.net.wire import Assembler, Record, RecordKind, encode

logger = logging.getLogger(__name__)

_ROUND_TRIPS = 40  # the last ones, of which the shortest tells what the way takes when nothing is in it


class Session:
    """What this node says to ``peer`` and hears from it while the control link lives.

    `send` and `request` may be called from any thread, everything else on the transport's.
    """

    def __init__(self, peer: Peer, handlers: Handlers, clock: Clock, control: Outbox, stream: Outbox) -> None:
        self.peer = peer
        self.control = control
        self.stream = stream
        self.ended = False
        self._handlers = handlers
        self._requests = _Requests(clock, peer)
        self._round_trips: deque[float] = deque(maxlen=_ROUND_TRIPS)
        self._bandwidth: float | None = None

    @property
    def stats(self) -> LinkStats:
        """What was measured so far."""
        return LinkStats(min(self._round_trips, default=None), self._bandwidth)

    def send(self, topic: str, payload: bytes) -> bool:
        """Queue a message on the topic's lane."""
        outbox = self.stream if topic == STREAM else self.control
        return outbox.put(encode(RecordKind.MESSAGE, 0, topic, payload))

    def request(self, topic: str, payload: bytes, timeout: float) -> Deferred[bytes]:
        """Queue a request on the control link."""
        number, answer = self._requests.open(topic, timeout)
        if not self.control.put(encode(RecordKind.REQUEST, number, topic, payload)):
            self._requests.settle(number, lost(self.peer.node_id))
        return answer

    def feed(self, assembler: Assembler, kind: int, body: bytes) -> None:
        """Take a frame of records. Raises `wire.MalformedFrame`."""
        for record in assembler.feed(kind, body):
            if self.ended:
                return
            self._take(record)

    def timed(self, round_trip: float) -> None:
        """Take the seconds that a heart-beat needed to the peer and back."""
        self._round_trips.append(round_trip)

    def probed(self, bytes_a_second: float) -> None:
        """Take the result of the bandwidth probe."""
        self._bandwidth = bytes_a_second

    def end(self) -> None:
        """Answer everything that waits with `LinkLost`."""
        self.ended = True
        self.control.close()
        self.stream.close()
        self._requests.lose()

    def _take(self, record: Record) -> None:
        match record.kind:
            case RecordKind.MESSAGE:
                self._guarded(lambda: self._handlers.message(self.peer.node_id, record.topic, record.payload))
            case RecordKind.REQUEST:
                self._guarded(lambda: self._answer(record))
            case RecordKind.ANSWER:
                self._requests.settle(record.correlation, record.payload)
            case RecordKind.ERROR:
                why = record.payload.decode(errors="replace")
                self._requests.settle(record.correlation, RequestFailed(why))

    def _answer(self, record: Record) -> None:
        try:
            answer = self._handlers.request(self.peer.node_id, record.topic, record.payload)
        except Exception as error:
            self._reply(record, None, error)
            raise
        answer.add_done_callback(
            lambda settled: self._reply(record, None if settled.error else settled.get(), settled.error)
        )

    def _reply(self, request: Record, value: bytes | None, error: BaseException | None) -> None:
        if error is None:
            kind, payload = RecordKind.ANSWER, value or b""
        else:
            kind, payload = RecordKind.ERROR, (str(error) or type(error).__name__).encode()
        self.control.put(encode(kind, request.correlation, "", payload))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("A handler of messages from node %s failed", self.peer.node_id)


class _Requests:
    """The requests of a session that wait for their answers."""

    def __init__(self, clock: Clock, peer: Peer) -> None:
        self._clock = clock
        self._peer = peer
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Deferred[bytes], Timer]] = {}
        self._lost = False

    def open(self, topic: str, timeout: float) -> tuple[int, Deferred[bytes]]:
        number, answer = next(self._numbers) & 0xFFFFFFFF, Deferred[bytes]()
        late = TimeoutError(f"Node {self._peer.node_id} did not answer {topic!r} within {timeout:g} s.")
        timer = self._clock.call_later(timeout, lambda: self.settle(number, late))
        with self._lock:
            lose, self._open[number] = self._lost, (answer, timer)
        if lose:
            self.settle(number, lost(self._peer.node_id))
        return number, answer

    def settle(self, number: int, outcome: bytes | Exception) -> None:
        """Answer one; an answer that comes too late finds nobody and is dropped."""
        with self._lock:
            answer, timer = self._open.pop(number, (None, None))
        if answer is None or timer is None:
            return
        timer.cancel()
        if isinstance(outcome, Exception):
            answer.fail(outcome)
        else:
            answer.resolve(outcome)

    def lose(self) -> None:
        with self._lock:
            self._lost, numbers = True, list(self._open)
        for number in numbers:
            self.settle(number, lost(self._peer.node_id))


def lost(node_id: str) -> LinkLost:
    """The error of a request to a node without a link."""
    return LinkLost(f"There is no link to node {node_id}; ask again once it is up.")
