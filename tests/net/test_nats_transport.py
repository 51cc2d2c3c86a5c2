"""The transport over NATS, on a real nats-server."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.nats_servers import binary
from support.served import free_port
from support.transports import Recorder, eventually, peer
from transport_conformance import TransportConformance, World

pytest.importorskip("nats", reason="nats-py is not installed; install cuebook[nats] for this test")

from actors.net.nats import Nats, NatsSettings
from actors.net.nats_lane import Lane
from actors.net.transport import Transport, TransportError


class Server:
    """A nats-server on a port of its own."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._command = [binary(), "-a", "127.0.0.1", "-p", str(self.port), *options]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        eventually(self._answers)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class NatsWorld(World):
    def __init__(self, server: Server) -> None:
        super().__init__()
        self.cluster = uuid.uuid4().hex
        self.server = server

    def make(self, node_id: str, queue_messages: int) -> Transport:
        return Nats(
            NatsSettings(servers=(self.server.url,), cluster=self.cluster, queue_messages=queue_messages)
        )

    def break_link(self, one: str, other: str) -> None:
        """The server is gone for as long as it takes to be missed."""
        self.server.stop()
        eventually(lambda: not self.recorders[one].up and not self.recorders[other].up)
        self.server.start()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


class TestNats(TransportConformance):
    @pytest.fixture
    def world(self, server: Server) -> World:
        return NatsWorld(server)


def answered(transport: Transport, node_id: str) -> bool:
    answer = transport.request(node_id, "log", b"1", 1)
    return answer.wait(2) and answer.error is None


def test_a_short_restart_of_the_server_is_survived(server: Server) -> None:
    world = NatsWorld(server)
    a, _ = world.start("a", "b")
    try:
        server.stop()
        time.sleep(0.3)
        server.start()
        eventually(lambda: answered(a, "b"))
        eventually(lambda: "b" in a.links() and a.links()["b"].latency_s is not None)
    finally:
        world.stop()
    assert world.recorders["a"].wrong == []


def three_servers() -> list[Server]:
    routes = [free_port() for _ in range(3)]
    known = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
    return [
        Server("--cluster_name", "three", "--cluster", f"nats://127.0.0.1:{port}", "--routes", known)
        for port in routes
    ]


def test_of_three_servers_one_may_be_killed() -> None:
    servers = three_servers()
    urls = tuple(server.url for server in servers)
    cluster = uuid.uuid4().hex
    nodes = {node_id: (Nats(NatsSettings(servers=urls, cluster=cluster)), Recorder()) for node_id in "abc"}
    try:
        for node_id, (transport, recorder) in nodes.items():
            transport.start(peer(node_id), recorder)
        eventually(lambda: all(len(recorder.up) == 2 for _, recorder in nodes.values()))
        for server in servers[:2]:
            server.stop()
            for asker, asked in ("ab", "bc", "ca"):
                eventually(lambda asker=asker, asked=asked: answered(nodes[asker][0], asked))
            server.start()
        assert [recorder.wrong for _, recorder in nodes.values()] == [[], [], []]
    finally:
        for transport, _ in nodes.values():
            transport.stop()
        for server in servers:
            server.stop()


def test_two_clusters_on_one_server_do_not_mix(server: Server) -> None:
    one, other = NatsWorld(server), NatsWorld(server)
    one.start("a", "b")
    other.start("c", "d")
    try:
        time.sleep(1.2)
        assert one.recorders["a"].up == {"b"}
        assert other.recorders["c"].up == {"d"}
    finally:
        one.stop()
        other.stop()


def test_another_version_is_refused_visibly(server: Server) -> None:
    world = NatsWorld(server)
    world.start("a")
    newer, recorder = world.make("b", 2_000), Recorder()
    newer.start(peer("b", version="0.2.0"), recorder)
    try:
        eventually(lambda: recorder.refusals and world.recorders["a"].refusals)
        assert "run the same version on both" in recorder.refusals[0][1]
        assert recorder.up == world.recorders["a"].up == set()
    finally:
        newer.stop()
        world.stop()


def test_no_server_is_told(tmp_path: Path) -> None:
    transport = Nats(NatsSettings(servers=("nats://user:secret@127.0.0.1:1",)))
    with pytest.raises(TransportError, match=r"No NATS server answers at 127\.0\.0\.1:1 ") as told:
        transport.start(peer("a"), Recorder())
    assert "secret" not in str(told.value)


def test_a_lane_that_ends_before_its_peer_has_been_answered_leaves_no_task() -> None:
    async def publish(number: int, ready: bytes) -> None:
        pytest.fail("it has ended")

    async def run() -> None:
        lane = Lane(publish, (10, 10), lambda: None, lambda why: None)
        lane.end()
        lane.start()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
