"""The API server: aiohttp in its own thread, with its own event loop, as an actor like the others."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from typing import Any, NamedTuple

from aiohttp import web

from actors.actor import Actor
from actors.deferred import Deferred
from actors.gateway import Gateway
from actors.refusal import StartFailed
from api.app import build_app
from api.protocol import Site
from events.values import Cause

STOP_S = 2.0
"""Seconds that open answers may take to end after the server is told to stop; then they are cut."""
_START_S = 30.0
_JOIN_S = 8.0

logger = logging.getLogger(__name__)


class WhereAreYou(NamedTuple):
    """Ask for the URL that the server listens on."""


class _Ended(NamedTuple):
    """The loop's thread is gone although nobody stopped it."""

    error: BaseException | None


class LoopEnded(Exception):
    """The API's event loop ended although nobody stopped it; ``__cause__`` says why."""


class ApiServer(Actor):
    """Serves the HTTP API of one node. Starting fails, with what to do, where the port is taken."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway
        self._ready = Deferred[str]()
        self._enough: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="api-loop", daemon=True)

    def started(self) -> None:
        """Start the thread and wait until it listens."""
        self._thread.start()
        try:
            self._url = self._ready.get(timeout=_START_S)
        except TimeoutError:
            self.stopping()
            raise
        logger.info("The API is at %s", self._url)

    def receive(self, message: Any) -> Any:
        """Answer `WhereAreYou`; crash with the thread."""
        if isinstance(message, WhereAreYou):
            return self._url
        if isinstance(message, _Ended):
            raise LoopEnded("the API's event loop has ended") from message.error
        raise TypeError(f"the API server takes no {type(message).__name__}")

    def stopping(self) -> None:
        """Take no more connections, let open answers end within `STOP_S`, end the thread."""
        loop, stop = self._loop, self._enough
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._main())
        except BaseException as caught:
            error = caught
        if not self._ready.fail(error or LoopEnded("the API's event loop has ended")):
            self.mailbox.put_system(_Ended(error))

    async def _main(self) -> None:
        self._loop, self._enough = asyncio.get_running_loop(), asyncio.Event()
        await self._gateway.open()
        runner = web.AppRunner(build_app(self._gateway), handler_cancellation=True, shutdown_timeout=STOP_S)
        try:
            await runner.setup()
            self._ready.resolve(await self._listen(runner))
            enough = asyncio.ensure_future(self._enough.wait())
            await asyncio.wait({enough, self._gateway.broken}, return_when=asyncio.FIRST_COMPLETED)
            if self._gateway.broken.done():
                self._gateway.broken.result()
        finally:
            await runner.cleanup()
            self._gateway.close()

    async def _listen(self, runner: web.AppRunner) -> str:
        """Listen; returns the URL. Raises `StartFailed` where the address can't be had."""
        settings = self._gateway.settings
        try:
            await Site(runner, settings.host, settings.api_port).start()
        except OSError as error:
            raise StartFailed(_no_address(settings.host, settings.api_port, error)) from error
        port = runner.addresses[0][1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"http://{host}:{port}"


def _no_address(host: str, port: int, error: OSError) -> Cause:
    if error.errno == errno.EADDRINUSE:
        message = (
            f"Port {port} of {host} is in use, perhaps by another Cuebook node. Stop that one, or choose "
            "another port with --port or CUEBOOK_API_PORT."
        )
        return Cause(code="port_in_use", message=message, detail={"port": port})
    why = error.strerror or error
    message = f"The API can't listen on {host}:{port}: {why}. Choose another --host or --port."
    return Cause(code="address_unusable", message=message, detail={"port": port})
