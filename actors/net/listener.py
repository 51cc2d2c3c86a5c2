"""The mesh port: accepts connections, shakes hands over TLS and hands WebSockets on.

An own accept loop, so that a failed TLS handshake is told with the address it came from.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable

from aiohttp import web

from actors.net.channel import MAX_FRAME, PATH, Channel
from actors.net.dialling import tls_refusal
from actors.net.handshake import GREETING_S
from actors.net.interfaces import with_scope
from actors.net.transport import TransportError

_BACKLOG = 128
# asyncio's TLS client sends no alert where it doesn't accept a certificate: it hangs up.
_BROKEN_OFF = (
    "a caller broke off the TLS handshake. Where it is a node, it doesn't accept this node's certificate: "
    "both need certificates of the same authority."
)


class Listener:
    """Sockets on the mesh port. ``port`` is the port in use, also where any was asked for."""

    def __init__(
        self,
        sockets: list[socket.socket],
        tls: ssl.SSLContext | None,
        take: Callable[[Channel], Awaitable[None]],
        failed: Callable[[str, str], None],
    ) -> None:
        self.port: int = sockets[0].getsockname()[1]
        self._sockets = sockets
        self._tls = tls
        self._take = take
        self._failed = failed
        self._server = web.Server(self._serve, access_log=None)
        self._loop = asyncio.get_running_loop()
        self._admissions: set[asyncio.Task[None]] = set()
        self._asked: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        self._accepts = [self._loop.create_task(self._accept(listening)) for listening in sockets]

    async def close(self) -> None:
        """Accept no more; end what is being accepted."""
        tasks = [*self._accepts, *self._admissions]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        await self._server.shutdown(timeout=1.0)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listening)
            except OSError:  # the caller is gone already, or no file handle is free
                await asyncio.sleep(0.05)
                continue
            task = self._loop.create_task(self._admit(connection, with_scope(address)))
            self._admissions.add(task)
            task.add_done_callback(self._admissions.discard)

    async def _admit(self, connection: socket.socket, host: str) -> None:
        limit = GREETING_S if self._tls else None
        try:
            connection.setblocking(False)
            transport, _ = await self._loop.connect_accepted_socket(
                self._server, connection, ssl=self._tls, ssl_handshake_timeout=limit
            )
            await asyncio.sleep(GREETING_S)
            if transport not in self._asked:
                transport.abort()
        except ssl.SSLError as error:
            self._failed(host, tls_refusal(error))
        except OSError:
            connection.close()
            if self._tls and self._tls.verify_mode is ssl.CERT_REQUIRED:
                self._failed(host, _BROKEN_OFF)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            self._asked.add(request.transport)
        if "Origin" in request.headers:  # a page in a browser, which may reach the loopback of its machine
            return web.Response(status=403)
        if request.path != PATH:
            return web.Response(
                status=404, text="This is the port by which Cuebook's nodes reach one another.\n"
            )
        ws = web.WebSocketResponse(compress=False, max_msg_size=MAX_FRAME, timeout=1.0)
        await ws.prepare(request)
        peername = request.transport.get_extra_info("peername") if request.transport else None
        if peername:
            await self._take(Channel(ws, with_scope(peername), peername[1]))
        return ws


def listen(hosts: list[str], port: int) -> list[socket.socket]:
    """Listening sockets on each of ``hosts``, all on one port. Raises `TransportError`."""
    sockets: list[socket.socket] = []
    try:
        for host in hosts:
            made = _listen(host, sockets[0].getsockname()[1] if sockets else port)
            if made is not None:
                sockets.append(made)
    except OSError as error:
        for made in sockets:
            made.close()
        if error.errno == errno.EADDRINUSE:
            raise TransportError(
                f"The mesh port {port} is in use on this machine; stop the other node or set another port."
            ) from error
        raise TransportError(f"The mesh can't listen on {hosts} port {port}: {error}.") from error
    if not sockets:
        raise TransportError(f"The mesh can't listen on {hosts}: this machine has none of these addresses.")
    return sockets


def _listen(host: str, port: int) -> socket.socket | None:
    """None where the machine lacks the address family."""
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made: socket.socket | None = None
    with contextlib.suppress(OSError):
        made = socket.socket(family, kind)
    if made is None:
        return None
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        if host in ("::", "::1") and error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return made
