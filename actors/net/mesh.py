"""The mesh: WebSocket links between all nodes, on a thread of its own. The transport without a server."""

from __future__ import annotations

import asyncio
import threading
from random import Random

from actors.clock import SYSTEM_CLOCK, Clock
from actors.deferred import Deferred
from actors.net.auth import security
from actors.net.hub import Hub
from actors.net.mesh_settings import MeshSettings
from actors.net.session import Session, lost
from actors.net.transport import Handlers, LinkStats, Peer, by_node_id


class Mesh:
    """A `transport.Transport` for a handful of machines."""

    def __init__(
        self, settings: MeshSettings, *, clock: Clock = SYSTEM_CLOCK, random: Random | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random or Random()
        self._hub: Hub | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port in use; the one that is set before `start`."""
        return self._hub.port if self._hub else self._settings.port

    def start(self, me: Peer, handlers: Handlers) -> None:
        """Listen, and begin to look for the others. Raises `TransportError`."""
        started: Deferred[None] = Deferred()
        self._thread = threading.Thread(
            target=self._run, args=(me, handlers, started), name="mesh", daemon=True
        )
        self._thread.start()
        started.get()

    def stop(self) -> None:
        """Say goodbye and end; `Handlers.peer_down` is not called for this. Not from the mesh's thread."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stopping is None:
            return
        if thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()

    def send(self, node_id: str, topic: str, payload: bytes) -> bool:
        """Queue a message; False where there is no link."""
        session = self._session(node_id)
        return session is not None and session.send(topic, payload)

    def broadcast(self, topic: str, payload: bytes) -> None:
        """Queue a message for every peer."""
        for session in self._sessions():
            session.send(topic, payload)

    def request(self, node_id: str, topic: str, payload: bytes, timeout: float) -> Deferred[bytes]:
        """Ask a peer."""
        session = self._session(node_id)
        if session is not None:
            return session.request(topic, payload, timeout)
        answer: Deferred[bytes] = Deferred()
        answer.fail(lost(node_id))
        return answer

    def peers(self) -> list[Peer]:
        """The peers that are up."""
        return by_node_id(session.peer for session in self._sessions())

    def links(self) -> dict[str, LinkStats]:
        """What was measured."""
        return {session.peer.node_id: session.stats for session in self._sessions()}

    def _session(self, node_id: str) -> Session | None:
        return self._hub.sessions.get(node_id) if self._hub else None

    def _sessions(self) -> list[Session]:
        return list(self._hub.sessions.values()) if self._hub else []

    def _run(self, me: Peer, handlers: Handlers, started: Deferred[None]) -> None:
        try:
            asyncio.run(self._live(me, handlers, started))
        except Exception as error:
            if not started.fail(error):
                raise

    async def _live(self, me: Peer, handlers: Handlers, started: Deferred[None]) -> None:
        settings = self._settings
        settings.hosts()
        own = security(settings.cluster, settings.secret, settings.certificates)
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._hub = Hub(settings, own, me, handlers, self._clock, self._random)
        self._hub.start()
        started.resolve()
        await self._stopping.wait()
        await self._hub.stop()
