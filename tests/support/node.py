"""A whole node in this process: real actors, a real runner, the real HTTP API on a port of its own."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.served import free_port

from actors.node import Node
from actors.settings import load_settings
from api.server import ApiServer

READY_S = 90
MODEL = "acme/tiny"
ENDLESS = "acme/endless"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class LocalNode:
    node: Node
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout: float = 60) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def call(
        self, method: str, path: str, body: object = None, *, raw: bytes | None = None, **headers: str
    ) -> Answer:
        """One request. ``headers`` are given with underscores for hyphens."""
        connection = self.connect(READY_S + 30)
        payload = raw if raw is not None else None if body is None else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, payload, {"Content-Type": "application/json", **names})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def place(self, model_id: str, **settings: object) -> str:
        """Place a model and wait until it is ready; returns the instance's id."""
        placed = self.call("POST", "/instance", {"model_id": model_id, "placement_settings": settings})
        assert placed.status == 201, placed.body
        instance_id: str = placed.json["instance_id"]
        ready = self.call("GET", f"/instance/await?instance_id={instance_id}&timeout={READY_S}")
        assert ready.status == 200, ready.body
        return instance_id


@contextmanager
def local_node(home: Path, **settings: object) -> Iterator[LocalNode]:
    """Start a node with everything under ``home``; it takes work when the block begins."""
    port = free_port()
    flags = {"home": str(home), "api_port": port, "offline": True, "engines": "mlx", **settings}
    node = Node(load_settings(flags, environ={}), ApiServer)
    node.start()
    try:
        local = LocalNode(node, port)
        wait_ready(local)
        yield local
    finally:
        node.stop("the test is over")


def wait_ready(local: LocalNode) -> None:
    """Wait until the node is up in its own state."""
    with_events = local.connect()
    with_events.request("GET", "/events?follow=1")
    for line in with_events.getresponse():
        if line.startswith(b"event: NodeStarted"):
            break
    with_events.close()
