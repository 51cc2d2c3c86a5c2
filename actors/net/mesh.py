"""The mesh: WebSocket links between all nodes, on a thread of its own. The transport without a server."""

from __future__ import annotations

from random import Random

from actors.clock import SYSTEM_CLOCK, Clock
from actors.net.auth import security
from actors.net.hub import Hub
from actors.net.mesh_settings import MeshSettings
from actors.net.on_sessions import OnOwnLoop, Running
from actors.net.transport import Handlers, Peer


class Mesh(OnOwnLoop):
    """A `transport.Transport` for a handful of machines."""

    thread_name = "mesh"

    def __init__(
        self, settings: MeshSettings, *, clock: Clock = SYSTEM_CLOCK, random: Random | None = None
    ) -> None:
        super().__init__()
        self.port = settings.port
        """The port in use; before `start` the one that is set, which may be 0."""
        self._settings = settings
        self._clock = clock
        self._random = random or Random()

    async def enter(self, me: Peer, handlers: Handlers) -> Running:
        """Listen, and begin to look for the others. Raises `TransportError`."""
        settings = self._settings
        settings.hosts()  # an open mesh on a network is refused before anything else
        own = security(settings.cluster, settings.secret, settings.certificates)
        hub = Hub(settings, own, me, handlers, self.sessions, self._clock, self._random)
        self.port = hub.port
        hub.start()
        return hub
