"""Messages over the mesh against a bare aiohttp WebSocket with the same TLS, between two processes.

Run ``python tests/benchmarks/bench_transport.py``. Latency is one way, of 300-byte messages sent 1,000 times
a second; the rate is of messages sent as fast as the receiver's acknowledgements allow, 200 at a time. Both
are sent from a thread that is not the loop's. The cases alternate within one run; a ratio is of medians over
the rounds, above 1.0 where the mesh is faster.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from actors.deferred import Deferred
from actors.net.auth import security
from actors.net.channel import Channel
from actors.net.dialling import new_client, open_channel
from actors.net.mesh import Mesh
from actors.net.mesh_settings import MeshSettings
from actors.net.transport import Peer

ROUNDS = 3
SIZE = 300
PACED = 2_000  # messages at 1,000 a second
BURST = 30_000
WINDOW = 1_000  # messages under way in a burst; acknowledged in fifths
SECRET = "the secret of the benchmark"
CLUSTER = f"benchmark-{os.getpid()}"
STAMP = struct.Struct(">d")

Reply = Callable[[bytes], object]
Send = Callable[[list[bytes]], object]


class Receiver:
    """Takes messages: with a time stamp, or of a burst; answers ``done`` with what it measured."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.latencies: list[float] = []
        self.count = 0

    def take(self, payload: bytes) -> None:
        if payload[:1] == b"p":
            self.latencies.append(time.monotonic() - STAMP.unpack_from(payload, 1)[0])
            if len(self.latencies) == PACED:
                self.reply(b"l" + struct.pack(f">{PACED}d", *self.latencies))
                self.latencies = []
            return
        self.count += 1
        if self.count % (WINDOW // 5) == 0:
            self.reply(b"a")


class Sender:
    """Paces, bursts, and hears the receiver's replies."""

    def __init__(self) -> None:
        self.credit = threading.Semaphore(5)
        self.measured: Deferred[bytes] = Deferred()

    def heard(self, payload: bytes) -> None:
        if payload[:1] == b"a":
            self.credit.release()
        else:
            self.measured.resolve(payload[1:])

    def latency(self, send: Send) -> list[float]:
        """Seconds of each message."""
        self.measured = Deferred()
        filling = bytes(SIZE - 1 - STAMP.size)
        begin = time.monotonic()
        for number in range(PACED):
            delay = begin + number / 1_000 - time.monotonic()
            if delay > 0:
                time.sleep(delay)
            send([b"p" + STAMP.pack(time.monotonic()) + filling])
        return list(struct.unpack(f">{PACED}d", self.measured.get(timeout=60)))

    def rate(self, send: Send) -> float:
        """Messages a second."""
        payload = b"b" * SIZE
        begin = time.monotonic()
        for _ in range(BURST // (WINDOW // 5)):
            self.credit.acquire()
            send([payload] * (WINDOW // 5))
        for _ in range(5):
            self.credit.acquire()
        seconds = time.monotonic() - begin
        self.credit.release(5)
        return BURST / seconds


class MeshEnd:
    """The mesh's handlers around a function that takes messages."""

    def __init__(self, node_id: str, seeds: tuple[str, ...], take: Callable[[bytes], None]) -> None:
        self._take = take
        self.up = threading.Event()
        self.mesh = Mesh(
            MeshSettings(
                cluster=CLUSTER, secret=SECRET, bind="127.0.0.1", port=0, multicast=False, seeds=seeds
            )
        )
        self.mesh.start(Peer(node_id=node_id, name=node_id, version="0.1.0", api_url=""), self)

    def peer_up(self, peer: Peer) -> None:
        self.up.set()

    def peer_down(self, node_id: str, why: str) -> None:
        print(f"{node_id} is down: {why}", file=sys.stderr)

    def stream_lost(self, node_id: str, why: str) -> None:
        print(f"stream to {node_id}: {why}", file=sys.stderr)

    def message(self, node_id: str, topic: str, payload: bytes) -> None:
        self._take(payload)

    def request(self, node_id: str, topic: str, payload: bytes) -> Deferred[bytes]:
        raise NotImplementedError

    def refused(self, host: str, why: str) -> None:
        print(f"refused: {why}", file=sys.stderr)


def mesh_receiver() -> None:
    receiver = Receiver(lambda payload: end.mesh.send("a", "log", payload))
    end = MeshEnd("b", (), receiver.take)
    print(end.mesh.port, flush=True)
    sys.stdin.read()
    end.mesh.stop()


async def bare_receiver() -> None:
    loop = asyncio.get_running_loop()

    async def serve(request: web.BaseRequest) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(compress=False)
        await ws.prepare(request)
        channel = Channel(ws, "", 0)
        replies: list[bytes] = []
        receiver = Receiver(replies.append)
        try:
            while True:
                receiver.take(await channel.receive())
                while replies:
                    await channel.send(replies.pop())
        except ConnectionError:
            return ws

    server = web.Server(serve, access_log=None)
    listening = await loop.create_server(server, "127.0.0.1", 0, ssl=security(CLUSTER, SECRET).server)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


class BareSender:
    """A WebSocket on a loop of its own; messages go through a queue from the sending thread."""

    def __init__(self, port: int, heard: Callable[[bytes], None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._queue: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._connected: Deferred[None] = Deferred()
        threading.Thread(
            target=lambda: self._loop.run_until_complete(self._run(port, heard)), daemon=True
        ).start()
        self._connected.get(timeout=20)

    def send(self, payloads: list[bytes]) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, payloads)

    async def _run(self, port: int, heard: Callable[[bytes], None]) -> None:
        async with new_client() as client:
            channel = await open_channel(client, security(CLUSTER, SECRET), "127.0.0.1", port)
            self._connected.resolve()

            async def read() -> None:
                while True:
                    heard(await channel.receive())

            reading = asyncio.create_task(read())
            while True:
                for payload in await self._queue.get():
                    await channel.send(payload)
                assert not reading.done()


def start(kind: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, __file__, kind, CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout
    return process, int(process.stdout.readline())


def compare() -> dict[str, dict[str, list[float]]]:
    processes: list[subprocess.Popen[str]] = []
    results: dict[str, dict[str, list[float]]] = {
        kind: {"p50": [], "p99": [], "rate": []} for kind in ("mesh", "bare")
    }
    try:
        process, port = start("mesh")
        processes.append(process)
        mesh_side, bare_side = Sender(), Sender()
        end = MeshEnd("a", (f"127.0.0.1:{port}",), mesh_side.heard)
        process, port = start("bare")
        processes.append(process)
        bare = BareSender(port, bare_side.heard)
        assert end.up.wait(20)
        time.sleep(1)  # the bandwidth probe is over
        cases: dict[str, tuple[Sender, Send]] = {
            "mesh": (mesh_side, lambda payloads: [end.mesh.send("b", "log", one) for one in payloads]),
            "bare": (bare_side, bare.send),
        }
        for _ in range(ROUNDS):
            for kind, (sender, send) in cases.items():
                latencies = sorted(sender.latency(send))
                results[kind]["p50"].append(latencies[PACED // 2] * 1e3)
                results[kind]["p99"].append(latencies[PACED * 99 // 100] * 1e3)
                results[kind]["rate"].append(sender.rate(send))
        end.mesh.stop()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return results


def report(results: dict[str, dict[str, list[float]]]) -> None:
    for name, unit in (("p50", "ms"), ("p99", "ms"), ("rate", "msg/s")):
        mesh, bare = (statistics.median(results[kind][name]) for kind in ("mesh", "bare"))
        ratio = mesh / bare if name == "rate" else bare / mesh
        print(f"{name:>5}: mesh {mesh:10,.2f} {unit}, bare WebSocket {bare:10,.2f} {unit}, ratio {ratio:.2f}")


@pytest.mark.benchmark
def test_transport_benchmark(capsys: Any) -> None:
    with capsys.disabled():
        report(compare())


if __name__ == "__main__":
    if len(sys.argv) > 2:
        CLUSTER = sys.argv[2]
    match sys.argv[1:2]:
        case ["mesh"]:
            mesh_receiver()
        case ["bare"]:
            asyncio.run(bare_receiver())
        case _:
            report(compare())
