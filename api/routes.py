"""A route, declared once: what its handler takes and gives is read off the handler's own signature.

A handler is ``async def name(call: Call[Body, Query]) -> Answer``. The body and the query are decoded and
checked before it runs; the Struct that it returns becomes the answer. Both the server and /openapi.json are
made from the same `Route`, so the document can't say anything else than what is served.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import web

from actors.gateway import Gateway
from api.answers import json_response
from api.decoding import decode_body, decode_query

Body = TypeVar("Body")
Query = TypeVar("Query")

GATEWAY = web.AppKey("gateway", Gateway)
MAX_BODY = 32 * 1024 * 1024
"""Bytes of a request's body."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Body, Query]):
    """One request: ``body`` and ``query`` as declared, None where the handler takes none."""

    request: web.Request
    gateway: Gateway
    body: Body
    query: Query

    def part(self, name: str) -> str:
        """A part of the path, decoded."""
        return self.request.match_info[name]

    def wants_events(self, *, follow: bool = False) -> bool:
        """True where the client asks for server-sent events. A HEAD opens no stream."""
        asked = follow or "text/event-stream" in self.request.headers.get("Accept", "")
        return asked and self.request.method != "HEAD"


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method of one path. ``path`` is in OpenAPI's form, ``/instance/{instance_id}``."""

    method: str
    path: str
    handler: Callable[[Call[Any, Any]], Awaitable[object]]
    tag: str
    status: int = 200
    errors: tuple[int, ...] = ()
    """Statuses of errors beside 400 and 500."""
    also: tuple[int, ...] = ()
    """Statuses beside ``status`` that carry the same answer."""
    events: Any = None
    """Type of the ``data`` of its server-sent events; None where it has none."""
    slashes: str = ""
    """The part of the path that may contain slashes."""
    headers: tuple[str, ...] = ()
    """Request headers that it reads."""

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.handler)

    @property
    def body(self) -> type[msgspec.Struct] | None:
        """The Struct of the request's body."""
        return _given(get_args(self._hints["call"])[0])

    @property
    def query(self) -> type[msgspec.Struct] | None:
        """The Struct of the query parameters."""
        return _given(get_args(self._hints["call"])[1])

    @property
    def answer(self) -> Any:
        """The type of the JSON answer."""
        hint = self._hints["return"]
        if get_origin(hint) in (Union, types.UnionType):
            kinds = [kind for kind in get_args(hint) if kind is not web.StreamResponse]
            return Union[tuple(kinds)]  # noqa: UP007
        return hint

    @property
    def title(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0].rstrip(".")

    @property
    def notes(self) -> str:
        """The rest of the handler's docstring."""
        return inspect.cleandoc(self.handler.__doc__ or "").partition("\n\n")[2].replace("\n", " ")

    @property
    def pattern(self) -> str:
        """The path as aiohttp's router reads it."""
        if not self.slashes:
            return self.path
        return self.path.replace(f"{{{self.slashes}}}", f"{{{self.slashes}:.+}}")

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Decode, run the handler, encode."""
        body = decode_body(await request.read(), self.body) if self.body else None
        query = decode_query(request, self.query) if self.query else None
        result = await self.handler(Call(request, request.app[GATEWAY], body, query))
        if isinstance(result, web.StreamResponse):
            return result
        return json_response(result, status=self.status)


def _given(kind: Any) -> type[msgspec.Struct] | None:
    return None if kind in (None, types.NoneType) else kind
