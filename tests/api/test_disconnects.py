"""Clients that go away or stop reading: generation stops, and nothing of them is left."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from support.node import ENDLESS, LocalNode

BODY: dict[str, Any] = {"model": ENDLESS, "prompt": "cue", "max_tokens": 4000, "stream": True}


def start(node: LocalNode, body: dict[str, Any], *, receive_buffer: int = 0) -> socket.socket:
    """A streaming request on a bare socket; returns once the first event has come."""
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect(("127.0.0.1", node.port))
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
    sock.sendall(head.encode() + payload)
    seen = b""
    while b"data: " not in seen:
        seen += sock.recv(4096)
    assert seen.startswith(b"HTTP/1.1 200")
    return sock


def eventually(condition: Callable[[], bool], timeout: float = 90) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def no_tasks(node: LocalNode) -> bool:
    return not node.call("GET", "/state/tasks").json


def ends(node: LocalNode, after: int) -> list[dict[str, Any]]:
    page = node.call("GET", f"/events?after={after}&limit=1000&type=TaskCancelled,TaskFinished,TaskFailed")
    return [record["event"] for record in page.json["events"]]


def head(node: LocalNode) -> int:
    return node.call("GET", "/readyz").json["seq"]


def test_a_disconnect_stops_the_generation(node: LocalNode) -> None:
    after = head(node)
    start(node, BODY).close()
    eventually(lambda: no_tasks(node))
    [end] = ends(node, after)
    assert end["type"] == "TaskCancelled"
    assert "disconnected" in end["reason"]
    assert end["usage"]["completion_tokens"] < 3900


def test_a_whole_answer_that_nobody_waits_for_stops_too(node: LocalNode) -> None:
    after = head(node)
    connection = node.connect()
    connection.request("POST", "/v1/completions", json.dumps({**BODY, "stream": False}))
    eventually(lambda: not no_tasks(node))
    connection.close()
    eventually(lambda: no_tasks(node))
    assert [end["type"] for end in ends(node, after)] == ["TaskCancelled"]


def test_a_client_that_reads_slowly_gets_it_all(node: LocalNode) -> None:
    sock = start(node, {**BODY, "max_tokens": 50}, receive_buffer=4096)
    time.sleep(1)
    seen = b""
    while b"[DONE]" not in seen:
        part = sock.recv(512)
        assert part
        seen += part
    sock.close()


def small_send_buffers(node: LocalNode) -> Callable[[], None]:
    """Let new connections of the node take little: else it has to say megabytes. Returns the way back."""
    (listening,) = (
        each
        for each in psutil.Process().net_connections("tcp4")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == node.port
    )

    def put(size: int) -> int:
        with socket.socket(fileno=os.dup(listening.fd)) as listener:
            before = listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        return before

    before = put(4096)

    def put_back() -> None:
        put(before // 2)  # the system doubles what it is told

    return put_back


def test_a_client_that_never_reads_is_cut_off(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("api.sse.MAX_BEHIND", 16 * 1024)
    request.addfinalizer(small_send_buffers(node))
    after = head(node)
    sock = start(node, {**BODY, "n": 64, "max_tokens": 3900, "logprobs": 5}, receive_buffer=4096)
    eventually(lambda: no_tasks(node))
    assert {end["reason"] for end in ends(node, after)} == {"the client read too slowly"}
    sock.close()


def test_a_hundred_disconnects_leave_nothing(node: LocalNode) -> None:
    process = psutil.Process()
    eventually(lambda: no_tasks(node))
    files, threads, after = process.num_fds(), process.num_threads(), head(node)
    for _ in range(20):
        for sock in [start(node, BODY) for _ in range(5)]:  # as many as decode at the same time, and fewer
            sock.close()
        eventually(lambda: no_tasks(node))
    eventually(lambda: process.num_fds() <= files + 2)
    eventually(lambda: process.num_threads() <= threads + 1)
    found = ends(node, after)
    assert len(found) == 100
    assert {end["type"] for end in found} == {"TaskCancelled"}
