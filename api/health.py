"""Whether the node lives and takes work, and where everything is."""

from __future__ import annotations

from importlib.metadata import version
from typing import Literal

import msgspec
from aiohttp import web

from api.answers import json_response
from api.routes import Call


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The API answers."""

    status: Literal["ok"] = "ok"
    node_id: str
    version: str


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """``starting`` until the node's devices and engines are in the log; then it takes work.

    ``seq`` is the newest event that this answer rests on. A node that joined a long log works before it has
    all of it: ``past_complete`` is false until what came before has been fetched from the other nodes.
    """

    status: Literal["ready", "starting"]
    node_id: str
    seq: int
    past_complete: bool
    ready_instances: list[str]


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What this is and where to go on."""

    name: Literal["cuebook"] = "cuebook"
    version: str
    node_id: str
    links: dict[str, str]


_LINKS = {
    "documentation": "/openapi.json",
    "models for OpenAI clients": "/v1/models",
    "models": "/models",
    "instances": "/instance",
    "state": "/state",
    "events": "/events",
    "decisions": "/decisions",
    "readiness": "/readyz",
}


async def health(call: Call[None, None]) -> Health:
    """Say that the API answers."""
    return Health(node_id=call.gateway.node_id, version=version("cuebook"))


async def readiness(call: Call[None, None]) -> Readiness | web.StreamResponse:
    """Say whether the node takes work, with 503 where it does not yet."""
    gateway = call.gateway
    answer = Readiness(
        status="ready" if gateway.started else "starting",
        node_id=gateway.node_id,
        seq=gateway.state.seq,
        past_complete=gateway.past_complete(),
        ready_instances=[i.instance_id for i in gateway.state.instances.values() if i.status == "ready"],
    )
    return json_response(answer, status=200 if gateway.started else 503)


async def index(call: Call[None, None]) -> Index:
    """Say what this is, with links."""
    return Index(version=version("cuebook"), node_id=call.gateway.node_id, links=_LINKS)
