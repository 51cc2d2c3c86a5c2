"""A fourth node joins a cluster on NATS with a long log: it works at once, and has all of it in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed; install cuebook[nats] for this test")

from support.long_log import copy_home, make_home
from support.nats_servers import nats_servers
from support.served import eventually
from test_join_long_log import LONG, SHORTER, joins, one_log, underway, whole
from test_nats import OnNats

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


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
        print(joins(net))


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
