"""The API server as an actor: it says why it can't start, and lets go of everything when it stops."""

from __future__ import annotations

import gc
import socket
import threading
import time
from pathlib import Path

import pytest
from support.node import LocalNode, local_node

from actors.gateway import Gateway
from actors.refusal import StartFailed


def test_a_taken_port_is_said_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(StartFailed, match=f"Port {port} of 127.0.0.1 is in use.*CUEBOOK_API_PORT"):  # noqa: SIM117
            with local_node(tmp_path, api_port=port):
                pass


def test_stopping_ends_streams_and_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with local_node(tmp_path) as node:
        connection = node.connect()
        connection.request("GET", "/events?follow=1")
        response = connection.getresponse()
        assert response.readline().startswith(b": ")
    assert response.read() is not None  # it ended
    connection.close()
    left = {thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()}
    assert not {name for name in left if name.startswith("api")}


def gateways() -> list[Gateway]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Gateway]


def test_a_crash_leaves_nothing_of_the_old_gateway(tmp_path: Path) -> None:
    others = {id(each) for each in gateways()}
    with local_node(tmp_path, engines="") as node:
        [gateway] = [each for each in gateways() if id(each) not in others]
        broken = gateway.broken
        broken.get_loop().call_soon_threadsafe(broken.set_exception, RuntimeError("made to crash"))
        while not broken.done() or not answers(node):
            time.sleep(0.05)
        del gateway, broken
        assert len(gateways()) == len(others) + 1


def answers(node: LocalNode) -> bool:
    try:
        return node.call("GET", "/healthz").status == 200
    except OSError:
        return False
