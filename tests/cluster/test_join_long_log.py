"""A fourth node joins a cluster with a long log: it works at once, and has the whole log in the end."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.lan import MODEL, Lan, lan
from support.long_log import begins_after, copy_home, digest, make_home
from support.served import ServedNode, eventually

from events.check import check
from events.reader import LogReader

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

LONG = int(os.environ.get("CUEBOOK_TEST_EVENTS", "1000000"))
SHORTER = 60_000
"""Events of a log whose past is some seconds on its way."""


@pytest.fixture(scope="module")
def shorter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("shorter") / "home", SHORTER)


@contextmanager
def cluster(root: Path, home: Path) -> Generator[Lan]:
    """Three nodes that have the log of ``home``, and a fourth that is still to be started."""
    with lan(root, 3, start=False, offline=True) as net:
        for node in net.nodes:
            copy_home(home, node.home)
        net.start()
        net.add()
        yield net


def seconds_to_ready(node: ServedNode) -> float:
    """Start a node and wait until it takes work."""
    began = time.monotonic()
    node.start(wait=False)
    while node.status_of("/readyz") != 200:
        assert node.alive()
        time.sleep(0.01)
    return time.monotonic() - began


def whole(node: ServedNode) -> bool:
    status, body = node.request("GET", "/readyz", timeout=30)
    return status == 200 and body["past_complete"]


def one_log(*nodes: ServedNode) -> None:
    """Every log is in order and has its past, and all have the same rows, byte for byte."""
    upto = min(last_decision(node) for node in nodes)
    for node in nodes:
        found = check(node.log)
        assert found.ok
        assert found.base == 0
    assert len({digest(node.log, upto) for node in nodes}) == 1


def last_decision(node: ServedNode) -> int:
    with LogReader.open(node.log) as reader:
        return reader.last_decision()


def underway(node: ServedNode) -> None:
    """Wait until a part of the past has come, and a part has not."""
    eventually(lambda: node.log.exists() and begins_after(node.log) > 0, 60)
    base = begins_after(node.log)
    eventually(lambda: begins_after(node.log) < base, 60)
    assert begins_after(node.log) > 0


def joins(net: Lan) -> str:
    """The fourth node works before it has the past, and has it in the end; how long that took."""
    fourth = net.nodes[3]
    began = time.monotonic()
    ready = seconds_to_ready(fourth)
    status, body = fourth.request("POST", "/instance", {"model_id": MODEL})
    answered = time.monotonic() - began
    assert status == 201, body
    assert not whole(fourth)
    lacks = begins_after(fourth.log)
    began = time.monotonic()
    net.together(*net.nodes)
    eventually(lambda: whole(fourth), 1800)
    took = time.monotonic() - began
    one_log(*net.nodes)
    return (
        f"{LONG:,} events: ready after {ready:.2f} s, a command answered after {answered:.2f} s. "
        f"{lacks:,} decisions of the past came in {took:.0f} s."
    )


def test_a_node_is_ready_before_it_has_the_past_and_has_it_in_the_end(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", LONG)
    alone = ServedNode(tmp_path / "alone", offline=True)
    lone = seconds_to_ready(alone)
    alone.stop()
    with cluster(tmp_path, home) as net:
        print(f"\n{joins(net)} A node alone is ready after {lone:.2f} s.")


def test_a_node_killed_while_the_past_comes_goes_on_where_it_was(tmp_path: Path, shorter: Path) -> None:
    with cluster(tmp_path, shorter) as net:
        fourth = net.nodes[3].start()
        underway(fourth)
        fourth.kill()
        left = begins_after(fourth.log)
        assert left > 0
        fourth.start()
        assert begins_after(fourth.log) <= left
        eventually(lambda: whole(fourth), 300)
        net.together(*net.nodes)
        one_log(*net.nodes)


def test_the_past_comes_though_the_master_is_killed(tmp_path: Path, shorter: Path) -> None:
    with cluster(tmp_path, shorter) as net:
        fourth = net.nodes[3].start()
        master = net.master(net.nodes[0])
        underway(fourth)
        master.kill()
        others = [node for node in net.nodes if node is not master]
        net.together(*others)
        assert net.master(fourth) is not fourth, "a node leads that does not know all commands"
        eventually(lambda: whole(fourth), 300)
        master.start()
        net.together(*net.nodes)
        one_log(*net.nodes)
