"""The transport over a NATS server or cluster, for when a cluster outgrows the mesh.

Subjects, below ``cuebook.<tag of the cluster's name>``: ``presence`` for everybody's heart-beats, and for
each node ``to.<node id>.control`` and ``to.<node id>.stream``, on a connection of its own each. A dead node
is noticed by its missing heart-beats alone, so also after ``kill -9`` only when `nats_hub.DEAD_S` has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from urllib.parse import urlsplit

import msgspec
import nats.errors
from msgspec import Struct
from nats.aio.client import Client

from actors.clock import SYSTEM_CLOCK, Clock
from actors.net.nats_hub import NatsHub
from actors.net.on_sessions import OnOwnLoop, Running
from actors.net.outbox import MAX_BYTES, MAX_MESSAGES
from actors.net.transport import Handlers, Peer, TransportError

logger = logging.getLogger(__name__)

_CONNECT_S = 5.0


class NatsSettings(Struct, frozen=True, kw_only=True):
    """How to reach NATS. Users, tokens and TLS go into the addresses, as ``tls://user:password@host:4222``."""

    servers: tuple[str, ...]
    cluster: str = "cuebook"
    queue_messages: int = MAX_MESSAGES
    queue_bytes: int = MAX_BYTES


class Nats(OnOwnLoop):
    """A `transport.Transport` on NATS."""

    thread_name = "nats"

    def __init__(self, settings: NatsSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._settings = settings
        self._clock = clock

    async def enter(self, me: Peer, handlers: Handlers) -> Running:
        """Connect, and begin to look for the others. Raises `TransportError`."""
        if not me.node_id or set(me.node_id) & set(" .*>\t\r\n"):
            raise TransportError(
                f"The node id {me.node_id!r} can't be part of a NATS subject: no dots, no blanks."
            )
        settings = self._settings
        control = await connect(settings)
        try:
            stream = await connect(settings)
        except TransportError:
            await control.close()
            raise
        if not me.host:
            me = msgspec.structs.replace(me, host=address_towards(settings.servers[0]))
        limits = settings.queue_messages, settings.queue_bytes
        hub = NatsHub(settings.cluster, limits, (control, stream), me, handlers, self.sessions, self._clock)
        await hub.start()
        return hub


async def connect(settings: NatsSettings) -> Client:
    """A connection that repairs itself. Raises `TransportError` where no server answers."""
    client = Client()
    try:
        async with asyncio.timeout(_CONNECT_S):
            await client.connect(
                list(settings.servers),
                name="cuebook",
                error_cb=_note,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # pyright: ignore[reportArgumentType]  (the library sleeps so long)
            )
    except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
        with contextlib.suppress(AssertionError):  # of a client that had yet to begin
            await client.close()
        servers = ", ".join(without_password(server) for server in settings.servers)
        raise TransportError(
            f"No NATS server answers at {servers} ({str(error) or type(error).__name__}): check that it runs "
            "and that the address, user and password are right."
        ) from error
    return client


async def _note(error: Exception) -> None:
    """The library tells of broken connections here and repairs them by itself."""
    logger.debug("NATS: %s", error)


def without_password(server: str) -> str:
    """The address of a server as it may be shown."""
    return server.rpartition("@")[2]


def address_towards(server: str) -> str:
    """The machine's address on the way to ``server``; empty where there is no way."""
    place = urlsplit(server if "//" in server else f"nats://{server}")
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(
            place.hostname, place.port or 4222, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return probe.getsockname()[0]
    return ""
