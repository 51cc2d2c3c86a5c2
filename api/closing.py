"""The server's end, for handlers that wait for something that may never come."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

from api.errors import ApiError

T = TypeVar("T")

CLOSING = web.AppKey("closing", asyncio.Event)
"""Set when the server is told to stop."""


class Closing(ApiError):
    """The server is about to stop; nothing more will come."""

    def __init__(self) -> None:
        super().__init__(503, "The node is stopping.", code="node_stopping", retry_after=5)


async def unless_closing(app: web.Application, waiting: Coroutine[Any, Any, T]) -> T:
    """What ``waiting`` comes to. Raises `Closing` where the server is told to stop before."""
    task = asyncio.ensure_future(waiting)
    closing = asyncio.ensure_future(app[CLOSING].wait())
    try:
        await asyncio.wait({task, closing}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Closing
        return task.result()
    finally:
        task.cancel()
        closing.cancel()


async def start_closing(app: web.Application) -> None:
    """Tell all who wait. For aiohttp's ``on_shutdown``."""
    app[CLOSING].set()
