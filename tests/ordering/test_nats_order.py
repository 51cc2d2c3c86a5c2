"""The log's order on three real NATS servers: one order, one log, whatever dies."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats", reason="nats-py is not installed; install cuebook[nats] for this test")

import nats
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ClusterInfo
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue
from support.nats_servers import NatsServers, nats_servers
from support.streamed_node import StreamedNode, streamed_nodes
from support.transports import eventually

from actors.jetstream.lease import KEY
from actors.net.greeting import tag_of
from events.check import check
from events.reader import LogReader


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with nats_servers(tmp_path_factory.mktemp("nats"), 3) as servers:
        yield servers


def rows(node: StreamedNode) -> list[list[tuple[Any, ...]]]:
    connection = sqlite3.connect(f"file:{node.log}?mode=ro", uri=True)
    try:
        return [
            connection.execute(f"SELECT * FROM {t} ORDER BY 1").fetchall() for t in ("decisions", "events")
        ]
    finally:
        connection.close()


def one_log(*nodes: StreamedNode) -> None:
    """Wait until all have the same rows, byte for byte, and check the chain."""
    eventually(lambda: all(rows(node) == rows(nodes[0]) for node in nodes[1:]), 60)
    assert all(check(node.log).ok for node in nodes)


def commands(node: StreamedNode) -> list[str]:
    with LogReader.open(node.log) as reader:
        return [decision.command_id for decision in reader.decisions()]


def leader(nodes: list[StreamedNode]) -> StreamedNode:
    eventually(lambda: sum(node.leads for node in nodes) == 1, 60)
    return next(node for node in nodes if node.leads)


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{n}" for n in range(count)]


def test_commands_are_decided_in_order_and_all_logs_are_equal(tmp_path: Path, servers: NatsServers) -> None:
    with streamed_nodes(tmp_path, servers.urls, cluster="in-order") as nodes:
        master = leader(nodes)
        wanted = names("cmd", 2000)
        master.decide(*wanted)
        one_log(*nodes)
        assert [each for each in commands(nodes[0]) if each in set(wanted)] == wanted
        assert {tuple(master.answer(each)[::2]) for each in wanted} == {("decided", str(master.epoch))}


def test_a_node_that_comes_late_gets_it_all(tmp_path: Path, servers: NatsServers) -> None:
    with streamed_nodes(tmp_path, servers.urls, "ab", cluster="late") as nodes:
        leader(nodes).decide(*names("cmd", 3000))
        late = StreamedNode(tmp_path, "node-c", "late", servers.urls).start().wait_up()
        try:
            one_log(*nodes, late)
        finally:
            late.stop()
        leader(nodes).decide(*names("more", 10))
        late.start().wait_up()
        try:
            one_log(*nodes, late)
        finally:
            late.stop()


def test_a_killed_master_is_followed_by_one_with_a_later_epoch(tmp_path: Path, servers: NatsServers) -> None:
    with streamed_nodes(tmp_path, servers.urls, cluster="killed") as nodes:
        first = leader(nodes)
        first.decide(*names("before", 20))
        first.ask(*names("during", 500))
        first.kill()
        killed_at = time.monotonic()
        others = [node for node in nodes if node is not first]
        second = leader(others)
        assert time.monotonic() - killed_at < 10
        assert second.epoch > first.epoch
        second.decide(*names("during", 500), *names("after", 20))
        first.start().wait_up()
        one_log(*nodes)
        found = commands(second)
        assert len(found) == len(set(found))
        assert {*names("before", 20), *names("during", 500), *names("after", 20)} <= set(found)


def test_a_master_that_stops_cleanly_hands_over_at_once(tmp_path: Path, servers: NatsServers) -> None:
    with streamed_nodes(tmp_path, servers.urls, "ab", cluster="handed") as nodes:
        first = leader(nodes)
        (second,) = [node for node in nodes if node is not first]
        first.stop()
        assert asyncio.run(holder(servers.urls, "handed")) in ("", second.node_id), "it kept the lease"
        eventually(lambda: second.leads)
        second.decide("cmd-1")


def test_a_master_that_was_held_up_is_fenced(tmp_path: Path, servers: NatsServers) -> None:
    """It stops in the middle of its work for longer than its lease lasts, and goes on as if nothing were."""
    with streamed_nodes(tmp_path, servers.urls, cluster="stale") as nodes:
        stale = leader(nodes)
        others = [node for node in nodes if node is not stale]
        stale.decide(*names("before", 20))
        for n in range(2000):
            stale.ask(f"during-{n}")
            if n == 1000:
                stale.signal(signal.SIGSTOP)
        second = leader(others)
        assert second.epoch > stale.epoch
        second.decide(*names("meanwhile", 50))
        stale.signal(signal.SIGCONT)

        eventually(lambda: all(stale.answer(each) for each in names("during", 2000)), 60)
        eventually(lambda: not stale.leads)
        one_log(*nodes)
        with LogReader.open(stale.log) as reader:
            known = {each.command_id: each for each in reader.decisions()}
            assert reader.branches() == []  # nothing gets into a log that the stream may refuse
        assert len(known) == len(commands(stale))
        for name in names("during", 2000):
            answer = stale.answer(name)
            if answer[0] == "decided":
                assert (answer[1], answer[2]) == (str(known[name].decision_id), str(known[name].epoch))
        assert any(stale.answer(name)[0] == "failed" for name in names("during", 2000))
        epochs = [each.epoch for each in known.values()]
        assert epochs == sorted(epochs)
        second.decide(*names("after", 20))
        one_log(*nodes)


async def holder(urls: tuple[str, ...], cluster: str) -> str:
    """The node that has the lease; empty where none has."""
    async with await nats.connect(list(urls)) as client:
        try:
            entry = await (await leases(client, cluster)).get(KEY)
        except KeyNotFoundError:
            return ""
        return (entry.value or b"").split()[0].decode()


async def take_away_the_lease(urls: tuple[str, ...], cluster: str) -> None:
    async with await nats.connect(list(urls)) as client:
        await (await leases(client, cluster)).delete(KEY)


async def leases(client: Client, cluster: str) -> KeyValue:
    return await JetStreamContext(client).key_value(f"cuebook_{tag_of(cluster).hex()}_lease")


def test_a_lost_lease_costs_the_office(tmp_path: Path, servers: NatsServers) -> None:
    with streamed_nodes(tmp_path, servers.urls, cluster="lost") as nodes:
        epochs: list[int] = []
        for round_ in range(3):
            master = leader(nodes)
            epochs.append(master.epoch)
            known = len(master.roles)
            asyncio.run(take_away_the_lease(servers.urls, "lost"))
            eventually(lambda master=master, known=known: ["Masterless"] in master.roles[known:])
            leader(nodes).decide(*names(f"round-{round_}", 20))
        assert epochs == sorted(set(epochs))
        one_log(*nodes)


async def clusters(urls: tuple[str, ...], cluster: str) -> list[ClusterInfo]:
    """How stream and bucket are kept; empty where the servers can't say."""
    tag = tag_of(cluster).hex()
    async with await nats.connect(list(urls)) as client:
        try:
            js = JetStreamContext(client)
            found = [await js.stream_info(name) for name in (f"cuebook_{tag}", f"KV_cuebook_{tag}_lease")]
        except nats.errors.Error:
            return []
    return [each.cluster for each in found if each.cluster]


def whole(servers: NatsServers, cluster: str) -> bool:
    """True where another server may die: all copies are up to date."""
    found = asyncio.run(clusters(servers.urls, cluster))
    copies = [copy for each in found for copy in each.replicas or []]
    return len(copies) == 4 and all(copy.current and not copy.offline for copy in copies)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_any_one_of_the_servers_may_be_killed(tmp_path: Path, servers: NatsServers) -> None:
    with streamed_nodes(tmp_path, servers.urls, cluster="server") as nodes:
        for round_ in range(3):
            eventually(lambda: whole(servers, "server"), 90)
            name = asyncio.run(clusters(servers.urls, "server"))[round_ % 2].leader or ""
            server = servers.named(name)
            leader(nodes).ask(*names(f"during-{round_}", 200))
            server.kill()
            killed_at = time.monotonic()
            eventually(lambda: any(node.leads for node in nodes), 60)
            while True:
                try:
                    leader(nodes).decide(*names(f"during-{round_}", 200), timeout=20)
                    break
                except AssertionError:
                    assert time.monotonic() - killed_at < 60
            print(f"{name} killed: {time.monotonic() - killed_at:.1f} s until all was decided")
            server.start()
        one_log(*nodes)
        found = commands(nodes[0])
        assert len(found) == len(set(found))
