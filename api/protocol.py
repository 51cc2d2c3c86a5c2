"""Connections, where aiohttp answers without asking the application: in the API's form there, too."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from api.errors import ApiError, error_response, from_exception, invalid

logger = logging.getLogger(__name__)

_BACKLOG = 128
"""Connections that may wait to be accepted."""


class _Protocol(web.RequestHandler):
    """One connection. What a stranger sends that is no HTTP is no fault of ours, and no news for the log."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no request, ``status`` 400, or to what no middleware has caught."""
        if status == 400:
            logger.debug("%s sent no HTTP: %s", request.remote, exc)
            response = error_response(_no_http(exc, message or ""))
        else:
            fault = exc if isinstance(exc, Exception) else TimeoutError()
            response = error_response(from_exception(fault))
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """Log what went wrong here; that a body breaks off or can't be decoded went wrong elsewhere."""
        if not isinstance(kwargs.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send it; a refused ``Expect`` comes here as it was raised."""
        if isinstance(resp, web.HTTPException):
            resp = error_response(from_exception(resp))
        return await super().finish_response(request, resp, start_time)


class Site(web.BaseSite):
    """Where a runner listens: a host and a port, 0 for any that is free."""

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        super().__init__(runner)
        self._address = (host, port)

    @property
    def name(self) -> str:
        """The URL, as it was asked for."""
        host, port = self._address
        return f"http://{host}:{port}"

    async def start(self) -> None:
        """Listen. Raises OSError."""
        await super().start()
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None, "the runner is set up"
        connection = partial(_Protocol, server, loop=loop, access_log=None)  # pyright: ignore[reportArgumentType]
        self._server = await loop.create_server(connection, *self._address, backlog=_BACKLOG)


def _no_http(error: BaseException | None, message: str) -> ApiError:
    """A sentence of the parser's words; its further lines repeat what came."""
    if isinstance(error, LineTooLong):
        return invalid(
            "The request line or a header is longer than the 8190 bytes that are taken.", code="line_too_long"
        )
    why = ", ".join(line.strip(" :.") for line in message.split("\n\n")[0].splitlines())
    return invalid(f"This is not HTTP as it should be: {why}.", code="invalid_http")
