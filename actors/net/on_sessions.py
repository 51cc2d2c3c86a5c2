"""What all transports share: their sessions by peer, and what any thread may ask of them."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import Protocol

from actors.deferred import Deferred
from actors.net.session import Session, lost
from actors.net.transport import Handlers, LinkStats, Peer, by_node_id


class OnSessions:
    """`send`, `broadcast`, `request`, `peers` and `links` of a `transport.Transport`.

    `sessions` is changed by the transport's thread only, read by all.
    """

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}

    def send(self, node_id: str, topic: str, payload: bytes) -> bool:
        """Queue a message; False where there is no link."""
        session = self.sessions.get(node_id)
        return session is not None and session.send(topic, payload)

    def broadcast(self, topic: str, payload: bytes) -> None:
        """Queue a message for every peer."""
        for session in list(self.sessions.values()):
            session.send(topic, payload)

    def request(self, node_id: str, topic: str, payload: bytes, timeout: float) -> Deferred[bytes]:
        """Ask a peer."""
        session = self.sessions.get(node_id)
        if session is not None:
            return session.request(topic, payload, timeout)
        answer: Deferred[bytes] = Deferred()
        answer.fail(lost(node_id))
        return answer

    def peers(self) -> list[Peer]:
        """The peers that are up."""
        return by_node_id(session.peer for session in list(self.sessions.values()))

    def links(self) -> dict[str, LinkStats]:
        """What was measured."""
        return {session.peer.node_id: session.stats for session in list(self.sessions.values())}


class Running(Protocol):
    """A transport at work on its loop."""

    async def stop(self) -> None:
        """Say goodbye and free everything."""
        ...


class OnOwnLoop(OnSessions, ABC):
    """A transport with an asyncio loop on a thread of its own."""

    thread_name: str

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    async def enter(self, me: Peer, handlers: Handlers) -> Running:
        """Begin, on the loop. Raises `TransportError`."""

    def start(self, me: Peer, handlers: Handlers) -> None:
        """Begin to find peers and to be found. Raises `TransportError`."""
        started: Deferred[None] = Deferred()
        self._thread = threading.Thread(
            target=self._run, args=(me, handlers, started), name=self.thread_name, daemon=True
        )
        self._thread.start()
        started.get()

    def stop(self) -> None:
        """Say goodbye and end, without `Handlers.peer_down`. Not from the transport's own thread."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stopping is None:
            return
        if thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()

    def _run(self, me: Peer, handlers: Handlers, started: Deferred[None]) -> None:
        try:
            asyncio.run(self._live(me, handlers, started))
        except Exception as error:
            if not started.fail(error):
                raise

    async def _live(self, me: Peer, handlers: Handlers, started: Deferred[None]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        running = await self.enter(me, handlers)
        started.resolve()
        await self._stopping.wait()
        await running.stop()
