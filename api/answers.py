"""Answers as JSON."""

from __future__ import annotations

import msgspec
from aiohttp import web

encode = msgspec.json.Encoder().encode


def json_response(value: object, *, status: int = 200) -> web.Response:
    """A response whose body is ``value``, a Struct or plain data."""
    return web.Response(body=encode(value), status=status, content_type="application/json")
