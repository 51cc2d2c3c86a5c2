"""Server-sent events over one response: opened late, kept alive, and never an unbounded buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

KEEP_ALIVE_S = 15.0
"""Seconds of silence after which a comment tells the client, and every proxy, that we are here."""
MAX_BEHIND = 1024 * 1024
"""Bytes that may wait for a client that reads slower than its answer is made."""

_KEEP_ALIVE = b": keep-alive\n\n"
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class TooSlow(Exception):
    """The client is `MAX_BEHIND` bytes behind."""


class _Response(web.StreamResponse):
    _send_headers_immediately = False  # they go out with the first event, in one packet


class EventStream:
    """Sends events to one client. Use as an async context manager; `send` opens the response.

    Until then nothing has been sent, and the handler may still answer with an error status. After
    `KEEP_ALIVE_S` of silence the stream opens by itself. ``preamble`` goes out first. A client that is gone
    ends the block, and nothing else.

    A stream whose source can wait (``patient``) waits for a slow client. Another one never does: what the
    client has not read yet waits in the socket's buffer, and `TooSlow` ends the stream when that grows
    beyond `MAX_BEHIND`.
    """

    def __init__(
        self,
        request: web.Request,
        *,
        patient: bool = False,
        preamble: bytes = b"",
        headers: Mapping[str, str] = {},
    ) -> None:
        self._request = request
        self._patient = patient
        self._preamble = preamble
        self._response = _Response(headers={**_HEADERS, **headers})
        self._transport = request.transport
        self._opening = asyncio.Lock()
        self._opened = False
        self._refused = False
        self._loop = asyncio.get_running_loop()
        self._last = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._tick_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        self._spoke()
        self._wind()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if self._ticker is not None:
            self._ticker.cancel()
        if self._tick_task is not None:
            self._tick_task.cancel()
        return isinstance(error, ConnectionError)

    @property
    def response(self) -> web.StreamResponse:
        """What the handler returns when all is sent."""
        return self._response

    async def send(self, data: bytes) -> None:
        """Write one or more whole events. Raises `TooSlow`, or ConnectionError where the client is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        if not self._patient and transport.get_write_buffer_size() > MAX_BEHIND:
            raise TooSlow
        if not self._opened:
            data = await self._open() + data
        self._spoke()
        await self._response.write(data)

    async def refuse(self) -> bool:
        """True where nothing has been sent, and from now on nothing will be: answer with a status instead."""
        async with self._opening:
            self._refused = not self._opened
            return self._refused

    async def _open(self) -> bytes:
        """Make the head ready; returns what goes out before anything else, to whoever is first."""
        async with self._opening:
            if self._opened or self._refused:
                return b""
            await self._response.prepare(self._request)
            if self._transport is not None and not self._patient:
                self._transport.set_write_buffer_limits(high=2 * MAX_BEHIND)
            self._opened = True
            return self._preamble

    def _spoke(self) -> None:
        self._last = self._loop.time()

    def _wind(self) -> None:
        """Look again when the silence would be long enough: one timer, however much is sent."""
        self._ticker = self._loop.call_at(self._last + KEEP_ALIVE_S, self._tick)

    def _tick(self) -> None:
        if self._loop.time() >= self._last + KEEP_ALIVE_S:
            self._tick_task = asyncio.ensure_future(self._keep_alive())
            self._spoke()
        self._wind()

    async def _keep_alive(self) -> None:
        try:
            preamble = await self._open()
            if self._opened:
                await self._response.write(preamble + _KEEP_ALIVE)
        except ConnectionError:
            pass  # the handler learns of it when it next sends, or is cancelled


def event(data: bytes, *, name: str = "", event_id: str = "") -> bytes:
    """One event; ``data`` is JSON, so it has no line breaks."""
    head = f"id: {event_id}\n" if event_id else ""
    head += f"event: {name}\n" if name else ""
    return head.encode() + b"data: " + data + b"\n\n"
