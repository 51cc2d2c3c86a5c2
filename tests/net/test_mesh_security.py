"""Who gets a link and who is refused, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.authority import Authority
from support.transports import Recorder, eventually, peer

from actors.net import dialling, listener
from actors.net.auth import Mode, security
from actors.net.channel import PATH, Channel
from actors.net.dialling import HungUp, new_client, open_channel
from actors.net.greeting import PROTOCOL, Challenge, Hello, Lane, Refused, Terms, Welcome, pack, tag_of
from actors.net.handshake import greet
from actors.net.mesh import Mesh
from actors.net.mesh_settings import MeshSettings
from actors.net.transport import TransportError

SECRET = "a secret of good length"
Make = Callable[..., tuple[Mesh, Recorder]]


@pytest.fixture
def cluster() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def make(cluster: str) -> Iterator[Make]:
    """Starts a mesh on loopback, with the one before it as its seed."""
    started: list[Mesh] = []

    def make(node_id: str, *, version: str = "0.1.0", **settings: Any) -> tuple[Mesh, Recorder]:
        seeds = tuple(f"127.0.0.1:{mesh.port}" for mesh in started[-1:])
        known = {"cluster": cluster, "bind": "127.0.0.1", "port": 0, "multicast": False, "seeds": seeds}
        mesh, recorder = Mesh(MeshSettings(**(known | settings))), Recorder()
        mesh.start(peer(node_id, version=version), recorder)
        started.append(mesh)
        return mesh, recorder

    yield make
    for mesh in started:
        mesh.stop()


def both_refuse(one: Recorder, other: Recorder, *sentences: str) -> None:
    eventually(lambda: one.refusals and other.refusals)
    for recorder in (one, other):
        assert recorder.up == set()
        host, why = recorder.refusals[0]
        assert host == "127.0.0.1"
        assert any(sentence in why for sentence in sentences), why


@pytest.mark.parametrize("ids", ["ab", "ba"])
def test_another_secret_is_refused_whoever_dials(make: Make, ids: str) -> None:
    _, one = make(ids[0], secret=SECRET)
    _, other = make(ids[1], secret=SECRET + "!")
    both_refuse(one, other, "doesn't have the secret of cluster")
    time.sleep(0.5)
    assert len(one.refusals) == len(other.refusals) == 1


def test_a_node_without_a_secret_is_refused_by_one_with_it(make: Make) -> None:
    _, one = make("a", secret=SECRET)
    make("b")
    eventually(lambda: one.refusals)
    assert "neither the cluster's secret nor a certificate" in one.refusals[0][1]
    assert one.up == set()


def test_a_node_with_a_secret_refuses_one_without(make: Make) -> None:
    make("a")
    _, other = make("b", secret=SECRET)
    eventually(lambda: other.refusals)
    assert "neither the cluster's secret nor a certificate" in other.refusals[0][1]


def test_a_seed_of_another_cluster_is_refused(make: Make) -> None:
    _, one = make("a", secret=SECRET)
    _, other = make("b", secret=SECRET, cluster="another")
    both_refuse(one, other, "belongs to another cluster")


def test_another_minor_version_is_refused_and_another_patch_is_not(make: Make) -> None:
    _, one = make("a", secret=SECRET)
    _, other = make("b", secret=SECRET, version="0.2.0")
    both_refuse(one, other, "runs version 0.2.0, this node 0.1.0", "runs version 0.1.0, this node 0.2.0")
    mesh, _ = make("c", secret=SECRET, version="0.2.9")
    eventually(lambda: [p.node_id for p in mesh.peers()] == ["b"])


def test_two_nodes_with_one_id_are_told(make: Make) -> None:
    _, one = make("a", secret=SECRET)
    _, other = make("a", secret=SECRET)
    both_refuse(one, other, "has this node's own id")


def test_a_seed_list_with_the_node_itself_is_fine(make: Make) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mesh, recorder = make("a", secret=SECRET, port=port, seeds=(f"127.0.0.1:{port}",))
    _, other = make("b", secret=SECRET)
    eventually(lambda: other.up == {"a"})
    assert recorder.refusals == other.refusals == []
    assert mesh.port == port


def test_certificates_of_one_authority_link(make: Make, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    a, _ = make("a", certificates=authority.sign("a"))
    _, other = make("b", certificates=authority.sign("b"))
    eventually(lambda: other.up == {"a"})
    assert a.send("b", "log", b"1")
    eventually(lambda: other.heard == {("a", "log"): [b"1"]})


@pytest.mark.parametrize("ids", ["ab", "ba"])
def test_a_certificate_of_another_authority_is_refused(make: Make, tmp_path: Path, ids: str) -> None:
    _, one = make(ids[0], certificates=Authority(tmp_path, "ours").sign(ids[0]))
    _, other = make(ids[1], certificates=Authority(tmp_path, "theirs").sign(ids[1]))
    both_refuse(one, other, "certificates of the same authority")


@pytest.mark.parametrize("ids", ["ab", "ba"])
def test_a_certificate_of_another_node_is_refused(make: Make, tmp_path: Path, ids: str) -> None:
    authority = Authority(tmp_path, "ours")
    _, one = make(ids[0], certificates=authority.sign(ids[0]))
    _, other = make(ids[1], certificates=authority.sign("z"))
    both_refuse(one, other, "showed a certificate for z: its node id must be a name in its certificate")


def test_who_has_no_certificate_is_hung_up_on_and_told(make: Make, cluster: str, tmp_path: Path) -> None:
    a, seen = make("a", certificates=Authority(tmp_path, "ours").sign("a"))

    async def dial() -> None:
        async with new_client() as client:
            with pytest.raises(HungUp, match="doesn't accept this node's certificate or secret"):
                await open_channel(client, security(cluster, SECRET), "127.0.0.1", a.port)

    asyncio.run(dial())
    eventually(lambda: seen.refusals)
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in seen.refusals[0][1]


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_open_mesh_listens_on_loopback_only(bind: str) -> None:
    with pytest.raises(TransportError, match=f"won't listen on {bind} without a secret"):
        Mesh(MeshSettings(bind=bind, port=0)).start(peer("a"), Recorder())


def test_a_short_secret_and_missing_certificates_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="has 5 characters; give one with at least 12"):
        Mesh(MeshSettings(secret="short", port=0)).start(peer("a"), Recorder())
    authority = Authority(tmp_path, "ours")
    files = authority.sign("a")
    files.key.unlink()
    with pytest.raises(TransportError, match=r"a\.key, this node's key, can't be read"):
        Mesh(MeshSettings(certificates=files, port=0)).start(peer("a"), Recorder())


def test_a_port_in_use_is_told(make: Make) -> None:
    mesh, _ = make("a")
    with pytest.raises(TransportError, match=f"port {mesh.port} is in use"):
        Mesh(MeshSettings(bind="127.0.0.1", port=mesh.port)).start(peer("b"), Recorder())


def test_a_seed_that_is_no_address_is_told() -> None:
    with pytest.raises(TransportError, match="'host:port' is no address"):
        Mesh(MeshSettings(port=0, seeds=("host:port",))).start(peer("b"), Recorder())


def test_the_wire_shows_nothing_of_what_is_said(make: Make) -> None:
    """A relay between two nodes sees TLS 1.3 records and none of the words."""
    a, seen = make("a", secret=SECRET)
    with Relay(a.port) as relay:
        b, _ = make("b", secret=SECRET, seeds=(f"127.0.0.1:{relay.port}",))
        eventually(lambda: seen.up == {"b"})
        # b learned of a through the relay; a, the smaller, dials b past it: the relay saw the introduction.
        b.send("a", "log", b"words")
        eventually(lambda: seen.heard)
        assert relay.seen
        assert b"name-of-" not in relay.seen


def test_nobody_can_sit_in_between(make: Make, cluster: str) -> None:
    """Somebody without the secret ends TLS himself and passes the greeting on: both sides notice."""
    a, seen = make("a", secret=SECRET)
    port = a.port

    async def attack() -> None:
        server = security(cluster, "the attacker's own secret")
        own = security(cluster, SECRET)
        async with new_client() as client, Middle(client, server.server, port) as middle:
            channel = await open_channel(client, own, "127.0.0.1", middle.port)
            terms = Terms(peer("b"), "process of b", cluster, own.mode)
            with pytest.raises(Refused, match="doesn't have the secret"):
                await greet(channel, terms, own, Lane.INTRODUCTION, "")
            await channel.close()

    asyncio.run(attack())
    eventually(lambda: seen.refusals)
    assert "doesn't have the secret" in seen.refusals[0][1]


def test_a_stranger_learns_no_proof_and_is_cut_off(make: Make, cluster: str) -> None:
    """Whoever merely connects gets the challenge, then a refusal: nothing to guess the secret from."""
    a, _ = make("a", secret=SECRET)

    async def ask() -> list[bytes]:
        own = security(cluster, "a guess at the secret")
        async with new_client() as client:
            channel = await open_channel(client, own, "127.0.0.1", a.port)
            hello = Hello(PROTOCOL, "x", tag_of(cluster), own.mode, Lane.CONTROL, "1", peer("z"), b"n" * 32)
            await channel.send(pack(hello))
            heard = [await channel.receive()]
            await channel.send(pack(hello))
            with contextlib.suppress(ConnectionError):
                while len(heard) < 9:
                    heard.append(await channel.receive())
            await channel.close()
            return heard

    heard = asyncio.run(ask())
    assert len(heard) == 2
    assert b"Challenge" in heard[0]
    assert b"Refusal" in heard[1]


def test_an_acceptor_without_the_secret_gets_no_link(make: Make, cluster: str) -> None:
    """Somebody plays a node at a seed's address, takes every proof and bids welcome with a made-up one."""
    listening = threading.Event()
    port: list[int] = []
    talks: list[bytes] = []

    async def bid_welcome(request: web.BaseRequest) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        channel = Channel(ws, "", 0)
        await channel.receive()
        tag, mode = tag_of(cluster), Mode.SECRET
        await channel.send(pack(Challenge(PROTOCOL, "x", tag, mode, peer("z", port=port[0]), b"n" * 32)))
        await channel.receive()
        await channel.send(pack(Welcome(b"0" * 32, [])))
        with contextlib.suppress(ConnectionError):
            talks.append(await channel.receive())
        return ws

    async def serve(stopped: asyncio.Event) -> None:
        tls = security(cluster, "the attacker's own secret").server
        server = web.Server(bid_welcome, access_log=None)
        sockets = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, ssl=tls)
        port.append(sockets.sockets[0].getsockname()[1])
        listening.set()
        await stopped.wait()
        sockets.close()
        await server.shutdown(1)

    loop, stopped = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(stopped)))
    thread.start()
    try:
        assert listening.wait(10)
        _, recorder = make("a", secret=SECRET, seeds=(f"127.0.0.1:{port[0]}",))
        eventually(lambda: recorder.refusals and talks)
        assert "node name-of-z (z) doesn't have the secret" in recorder.refusals[0][1]
        assert b"Refusal" in talks[0]
        assert recorder.up == set()
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()


def test_a_stranger_at_a_node_s_old_address_is_in_nobody_s_way(make: Make) -> None:
    a, seen = make("a", bind="")
    b, _ = make("b", bind="127.0.0.1")
    eventually(lambda: seen.up == {"b"})
    b.stop()
    eventually(lambda: seen.up == set())
    make("z", cluster="another", port=b.port, seeds=())
    make("b", bind="::1", seeds=(f"[::1]:{a.port}",))
    eventually(lambda: seen.up == {"b"})


def test_garbage_on_the_port_hurts_nobody(make: Make) -> None:
    a, _ = make("a", secret=SECRET)
    _, other = make("b", secret=SECRET)
    eventually(lambda: other.up == {"a"})
    for garbage in (b"", b"\x00" * 5000, b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", a.port)) as connection:
            connection.sendall(garbage)
    assert a.send("b", "log", b"1")
    eventually(lambda: other.heard)
    assert other.of("down") == []


@pytest.mark.parametrize("secret", ["", SECRET])
def test_who_says_nothing_is_cut_off(make: Make, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setattr(listener, "GREETING_S", 0.5)
    a, _ = make("a", secret=secret)
    tls = security("c", SECRET).client
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", a.port), timeout=10))
        if secret and tls:
            connection = stack.enter_context(tls.wrap_socket(connection))
        _, other = make("b", secret=secret)
        eventually(lambda: other.up == {"a"})
        with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
            assert connection.recv(1) == b""
    time.sleep(0.6)
    assert other.of("down") == []


def test_who_is_dialled_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "OPEN_S", 0.1)

    async def dial(port: int) -> None:
        async with new_client() as client:
            with pytest.raises(TimeoutError):
                await open_channel(client, security("c"), "127.0.0.1", port)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(asyncio.wait_for(dial(silent.getsockname()[1]), 10))


def test_a_page_in_a_browser_gets_no_link_with_an_open_mesh(make: Make) -> None:
    a, _ = make("a")

    async def visit() -> None:
        url = f"http://127.0.0.1:{a.port}{PATH}"
        async with new_client() as client:
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await client.ws_connect(url, origin="https://somewhere.example")

    asyncio.run(visit())


class Relay:
    """A TCP relay that remembers what passes."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.seen = b""

    def __enter__(self) -> Relay:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self.seen += data
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()


class Middle:
    """A man in the middle: TLS with his own certificate, and a WebSocket to the target."""

    def __init__(self, client: aiohttp.ClientSession, tls: ssl.SSLContext | None, target: int) -> None:
        self._client, self._tls, self._target = client, tls, target

    async def __aenter__(self) -> Middle:
        self._server = web.Server(self._serve, access_log=None)
        self._listening = await asyncio.get_running_loop().create_server(
            self._server, "127.0.0.1", 0, ssl=self._tls
        )
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        await self._server.shutdown(1)

    async def _serve(self, request: Any) -> Any:
        near = web.WebSocketResponse()
        await near.prepare(request)
        own = security("whatever", "the attacker's own secret")
        far = await open_channel(self._client, own, "127.0.0.1", self._target)
        back = asyncio.create_task(self._copy(far.receive, near.send_bytes))
        await self._copy(Channel(near, "", 0).receive, far.send)
        back.cancel()
        await far.close()
        return near

    async def _copy(self, receive: Callable[[], Any], send: Callable[[bytes], Any]) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await send(await receive())
