"""The HTTP application: the routes, the error middleware, the gateway."""

from __future__ import annotations

import asyncio
import functools
import weakref
from typing import Any

from aiohttp import web

from actors.gateway import Gateway
from api.closing import CLOSING, start_closing
from api.errors import errors_as_json
from api.log_access import LOG, LogAccess
from api.openapi import document
from api.routes import GATEWAY, MAX_BODY, Call, Route
from api.table import ROUTES
from api.web_pages import no_form_posts


async def openapi(call: Call[None, None]) -> dict[str, Any]:  # noqa: ARG001
    """Show this document."""
    return _document()


@functools.cache
def _document() -> dict[str, Any]:
    return document(ALL_ROUTES)


ALL_ROUTES = (*ROUTES, Route(method="GET", path="/openapi.json", handler=openapi, tag="health"))


def build_app(gateway: Gateway) -> web.Application:
    """The application that serves ``gateway``, which must be open when it starts, and outlive it."""
    app = web.Application(middlewares=[errors_as_json, no_form_posts], client_max_size=MAX_BODY)
    app[GATEWAY] = served = weakref.proxy(gateway)  # aiohttp's cache of handlers keeps apps that are no more
    app[LOG] = LogAccess(lambda: served.reader())
    for route in ALL_ROUTES:
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            app.router.add_route(method, route.pattern, route.serve)
    app[CLOSING] = asyncio.Event()
    app.on_shutdown.append(start_closing)
    app.on_cleanup.append(_close_log)
    return app


async def _close_log(app: web.Application) -> None:
    app[LOG].close()
