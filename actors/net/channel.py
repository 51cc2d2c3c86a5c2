"""A WebSocket with the few things that links need of it, the same on both sides."""

from __future__ import annotations

import contextlib
import socket
import ssl

import aiohttp
from aiohttp import web

from actors.net.wire import FRAME_BYTES

PATH = "/mesh"
MAX_FRAME = FRAME_BYTES + 64 * 1024
"""Bytes of the largest frame that is taken; greetings with many known addresses need the room."""


class Channel:
    """One WebSocket; ``host`` and ``port`` are the other side's."""

    def __init__(
        self, ws: aiohttp.ClientWebSocketResponse | web.WebSocketResponse, host: str, port: int
    ) -> None:
        self.host = host
        self.port = port
        self._ws = ws
        self._socket: socket.socket | None = ws.get_extra_info("socket")
        self.ssl_object: ssl.SSLObject | None = ws.get_extra_info("ssl_object")
        if self._socket is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def send(self, data: bytes) -> None:
        """Send one frame; waits while the other side doesn't take it. Raises ConnectionError."""
        await self._ws.send_bytes(data)

    async def receive(self) -> bytes:
        """The next frame. Raises ConnectionError once there is none."""
        message = await self._ws.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            return message.data
        if message.type is aiohttp.WSMsgType.ERROR:
            raise ConnectionResetError(f"the connection broke ({message.data})")
        raise ConnectionResetError("the other side closed the connection")

    def abort(self) -> None:
        """End the connection now, whatever is under way."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is already gone
                self._socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Free what the connection holds."""
        await self._ws.close()
