from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import uuid
from typing import Any

import psutil
import pytest
from support.served import free_port
from support.transports import Recorder, eventually, peer
from transport_conformance import TransportConformance, World

from actors.net.mesh import Mesh
from actors.net.mesh_settings import MeshSettings
from actors.net.transport import Transport


class MeshWorld(World):
    """Meshes on loopback; the first node is everybody's seed."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self.cluster = uuid.uuid4().hex
        self.secret = secret
        self.meshes: dict[str, Mesh] = {}

    def make(self, node_id: str, queue_messages: int) -> Transport:
        self.meshes[node_id] = Mesh(
            MeshSettings(
                cluster=self.cluster,
                secret=self.secret,
                bind="127.0.0.1",
                port=0,
                multicast=False,
                seeds=tuple(f"127.0.0.1:{mesh.port}" for mesh in list(self.meshes.values())[:1]),
                queue_messages=queue_messages,
            )
        )
        return self.meshes[node_id]

    def break_link(self, one: str, other: str) -> None:
        break_connections_to(self.meshes[max(one, other)].port)


def break_connections_to(port: int) -> None:
    """Shut the sockets that were accepted on ``port``, the greater id's: the smaller dialled."""
    handles = [
        socket.socket(fileno=os.dup(connection.fd))
        for connection in psutil.Process().net_connections("tcp4")
        if connection.status == "ESTABLISHED" and connection.laddr.port == port
    ]
    for handle in handles:
        with handle, contextlib.suppress(OSError):  # the first one's end may have ended it
            handle.shutdown(socket.SHUT_RDWR)


class TestOpenMesh(TransportConformance):
    @pytest.fixture
    def world(self) -> World:
        return MeshWorld(secret="")


class TestMeshWithSecret(TransportConformance):
    @pytest.fixture
    def world(self) -> World:
        return MeshWorld(secret="a secret of good length")


def test_a_node_that_knows_nobody_is_told_of_all_by_the_one_that_finds_it() -> None:
    """The late node has the smallest id: it must dial the others, and only its finder can tell it of them."""
    port = free_port()
    cluster = uuid.uuid4().hex

    def mesh(**fields: Any) -> Mesh:
        known: dict[str, Any] = {"cluster": cluster, "bind": "127.0.0.1", "port": 0, "multicast": False}
        return Mesh(MeshSettings(**(known | fields)))

    finder, late = mesh(seeds=(f"127.0.0.1:{port}",)), mesh(port=port)
    started: list[Mesh] = []
    try:
        finder.start(peer("m"), Recorder())
        started.append(finder)
        other = mesh(seeds=(f"127.0.0.1:{finder.port}",))
        other.start(peer("z"), Recorder())
        started.append(other)
        eventually(lambda: [p.node_id for p in finder.peers()] == ["z"])
        late.start(peer("a"), Recorder())
        started.append(late)
        eventually(lambda: [p.node_id for p in late.peers()] == ["m", "z"], timeout=30)
    finally:
        for node in started:
            node.stop()


@pytest.mark.parametrize("secret", ["", "a secret of good length"])
def test_stop_leaves_no_thread_and_no_socket(secret: str) -> None:
    gc.collect()
    descriptors, threads = psutil.Process().num_fds(), threading.active_count()
    world = MeshWorld(secret)
    world.start("a", "b", "c")
    world.stop()
    gc.collect()
    eventually(lambda: psutil.Process().num_fds() <= descriptors)
    assert threading.active_count() <= threads + 1  # the clock's, which all share


def test_links_are_measured() -> None:
    world = MeshWorld("a secret of good length")
    a, b = world.start("a", "b")
    try:
        eventually(lambda: a.links()["b"].bandwidth_bytes_s and b.links()["a"].bandwidth_bytes_s)
        eventually(lambda: a.links()["b"].latency_s and b.links()["a"].latency_s)
        measured = a.links()["b"]
        assert measured.latency_s is not None
        assert measured.bandwidth_bytes_s is not None
        assert 0 < measured.latency_s < 1
        assert measured.bandwidth_bytes_s > 1e6
    finally:
        world.stop()
