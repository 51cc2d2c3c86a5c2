"""Web pages of other sites: a browser on this machine must not carry their commands to the API.

A page may make a browser POST to any address, loopback too, and needs no leave for it as long as the request
is one that a form could send. Every other one the browser asks about first, with OPTIONS, which is refused.
"""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from api.errors import ApiError


@web.middleware
async def no_form_posts(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse (415) what a browser would send for a page without asking. Browsers name the page in Origin."""
    posted = request.method == "POST" and "Origin" in request.headers
    if posted and request.content_type != "application/json":
        message = "From a web page, only bodies of the Content-Type application/json are taken."
        raise ApiError(415, message, code="unsupported_media_type")
    return await handler(request)
