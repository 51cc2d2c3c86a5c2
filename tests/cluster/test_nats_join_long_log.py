"""A fourth node joins a cluster on NATS with a long log: it works at once, and has all of it in the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed; install cuebook[nats] for this test")

from support.lan import MODEL
from support.long_log import begins_after, copy_home, make_home
from support.nats_servers import nats_servers
from support.served import eventually
from test_join_long_log import one_log, seconds_to_ready, underway, whole
from test_nats import OnNats

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

LONG = int(os.environ.get("CUEBOOK_TEST_EVENTS", "1000000"))
SHORTER = 60_000


@contextmanager
def cluster(root: Path, events: int) -> Iterator[OnNats]:
    """Three nodes that have a long log, and so does the stream; and one that is still to be started."""
    home = make_home(root / "home", events)
    with nats_servers(root, 3) as servers:
        net = OnNats(servers, root, 4, offline=True)
        first, *others = net.nodes[:3]
        for node in net.nodes[:3]:
            copy_home(home, node.home)
        try:
            began = time.monotonic()
            first.start(wait=False)
            eventually(lambda: first.status_of("/readyz") == 200, 1800, first.output)
            print(f"\n{events:,} events: in the stream after {time.monotonic() - began:.0f} s")
            for node in others:
                node.start(wait=False)
            net.together(*net.nodes[:3], timeout=300)
            yield net
        finally:
            net.stop()


def test_a_node_is_ready_before_it_has_the_past_and_has_it_in_the_end(tmp_path: Path) -> None:
    with cluster(tmp_path, LONG) as net:
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
        print(
            f"{LONG:,} events: ready after {ready:.2f} s, a command answered after {answered:.2f} s. "
            f"{lacks:,} decisions of the past came in {took:.0f} s."
        )
        one_log(*net.nodes)


def test_the_past_comes_though_the_master_is_killed(tmp_path: Path) -> None:
    with cluster(tmp_path, SHORTER) as net:
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
