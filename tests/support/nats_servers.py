"""Real nats-servers with JetStream, alone or as a cluster, on loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.served import free_port
from support.transports import eventually


def binary() -> str:
    """The nats-server; skips the test where there is none."""
    found = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/bin")
    if found is None:
        pytest.skip("there is no nats-server here; apt-get install nats-server for this test")
    return found


class NatsServer:
    """One server with its files in ``root``; `kill` is kill -9, and `start` begins again from the files."""

    def __init__(self, root: Path, name: str, *options: str, jetstream: bool = True) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        files = ["-js", "-sd", str(root / name)] if jetstream else []
        self.urls = (self.url,)
        self._output = root / f"{name}.txt"
        self._command = [binary(), "-n", name, "-a", "127.0.0.1", "-p", str(self.port), *files, *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> NatsServer:
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stderr=output)
        eventually(self._answers)
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class NatsServers(list[NatsServer]):
    """Several servers; ``urls`` is what a client takes."""

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.url for server in self)

    def named(self, name: str) -> NatsServer:
        return next(server for server in self if server.name == name)


@contextmanager
def nats_servers(root: Path, count: int, *, jetstream: bool = True) -> Iterator[NatsServers]:
    """``count`` servers that have started; several form a cluster."""
    routes = [free_port() for _ in range(count)]
    known = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
    servers = NatsServers()
    for number, port in enumerate(routes, 1):
        cluster = ["--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{port}", "--routes", known]
        options = cluster if count > 1 else []
        servers.append(NatsServer(root, f"nats{number}", *options, jetstream=jetstream))
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()
