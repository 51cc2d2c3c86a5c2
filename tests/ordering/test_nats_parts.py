"""The pieces of the order on NATS, on one real server: fences, what is refused, logs that meet a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed; install cuebook[nats] for this test")

import nats
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from support.nats_servers import NatsServer, nats_servers
from support.streamed_node import StreamedNode, cancel, streamed_nodes
from support.transports import eventually

from actors import decider
from actors.jetstream import lease
from actors.jetstream.messages import decode
from actors.jetstream.publisher import Publisher
from actors.jetstream.store import Store, open_store
from actors.net.greeting import tag_of
from actors.net.transport import TransportError
from actors.ordering.epochs import Epoch
from actors.ordering.interface import Member
from actors.ordering.leased import Granted, Input, Publish
from events.commands import Facts
from events.log import EventLog
from events.reader import LogReader
from events.record import Draft

OLD, NEW = Epoch(1, "node-a", "start-1"), Epoch(2, "node-b", "start-2")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_servers(tmp_path_factory.mktemp("nats"), 1) as (server,):
        yield server


def on(server: NatsServer, cluster: str, work: Callable[[Store], Awaitable[None]]) -> None:
    """Do ``work`` with a cluster's store."""

    async def run() -> None:
        async with await nats.connect(server.url) as client:
            await work(await open_store(client, cluster))

    asyncio.run(run())


async def stored(store: Store) -> list[list[bytes]]:
    last = (await store.js.stream_info(store.stream)).state.last_seq
    messages = [await store.js.get_msg(store.stream, number) for number in range(1, last + 1)]
    return [decode(message.data or b"") for message in messages]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


def test_a_stale_publisher_is_refused_and_sends_nothing_more(server: NatsServer) -> None:
    """Not even what would be for the right place again: it follows what is not there."""

    async def work(store: Store) -> None:
        failures: list[str] = []
        stale = Publisher(store, lambda: failures.append("stale"))
        fresh = Publisher(store, lambda: failures.append("fresh"))
        tasks = [asyncio.ensure_future(each.run()) for each in (stale, fresh)]
        stale.begin(Granted(1, upto=0))
        stale.offer(Publish(1, OLD, [b"a"]))
        await until(lambda: _ends_with(store, [b"a"]))
        fresh.begin(Granted(2, upto=1))
        fresh.offer(Publish(2, NEW, [b"b"]))
        await until(lambda: _ends_with(store, [b"b"]))
        stale.offer(Publish(1, OLD, [b"c"]))
        stale.offer(Publish(1, OLD, [b"d"]))
        while not failures:
            await asyncio.sleep(0.01)
        stale.offer(Publish(1, OLD, [b"e"]))
        fresh.offer(Publish(2, NEW, [b"f"]))
        await until(lambda: _ends_with(store, [b"f"]))
        for task in tasks:
            task.cancel()
        assert failures == ["stale"]
        assert await stored(store) == [[b"a"], [b"b"], [b"f"]]

    on(server, "fenced", work)


async def _ends_with(store: Store, entries: list[bytes]) -> bool:
    return (await stored(store))[-1:] == [entries]


def test_what_comes_while_a_message_is_under_way_goes_together(server: NatsServer) -> None:
    async def work(store: Store) -> None:
        publisher = Publisher(store, lambda: pytest.fail("refused"))
        task = asyncio.ensure_future(publisher.run())
        publisher.begin(Granted(1, upto=0))
        batches = [[bytes([n])] for n in range(100)]
        publisher.offer(Publish(1, OLD, batches[0]))
        await asyncio.sleep(0)
        for batch in batches[1:]:
            publisher.offer(Publish(1, OLD, batch))
        await until(lambda: _has(store, 100))
        publisher.offer(Publish(1, OLD, [b"x" * 200_000, b"y" * 200_000, b"z" * 400_000, b"w"]))
        await until(lambda: _has(store, 104))
        task.cancel()
        messages = await stored(store)
        assert [entry for message in messages for entry in message][:100] == [bytes([n]) for n in range(100)]
        assert [len(message) for message in messages][-4:] == [1, 1, 1, 1]
        assert len(messages) <= 6

    on(server, "together", work)


def test_messages_are_no_larger_than_the_servers_take(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 65536")
    server = NatsServer(tmp_path, "small", "-c", str(config))

    async def work(store: Store) -> None:
        publisher = Publisher(store, lambda: pytest.fail("refused"))
        task = asyncio.ensure_future(publisher.run())
        publisher.begin(Granted(1, upto=0))
        publisher.offer(Publish(1, OLD, [b"x" * 60] * 5_000))
        await until(lambda: _has(store, 5_000))
        task.cancel()

    try:
        on(server.start(), "small", work)
    finally:
        server.kill()


async def _has(store: Store, count: int) -> bool:
    return sum(map(len, await stored(store))) >= count


def test_a_lease_that_is_given_back_is_left_to_others_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a node that lacks the past, whose stream ends before its log begins."""
    monkeypatch.setattr(lease, "HESITANT_S", 1.5)

    async def work(store: Store) -> None:
        granted: list[float] = []

        def post(event: Input) -> None:
            if isinstance(event, Granted):
                granted.append(time.monotonic())
                hesitant.give_up(event.term)

        hesitant = lease.Lease(store, Member("node-a", "start-1"), post)
        hesitant.hesitant = True
        task = asyncio.ensure_future(hesitant.run())
        async with asyncio.timeout(60):
            while len(granted) < 2:
                await asyncio.sleep(0.01)
        task.cancel()
        assert granted[1] - granted[0] > 1.5

    on(server, "hesitant", work)


def stream_of(cluster: str, **settings: object) -> StreamConfig:
    tag = tag_of(cluster).hex()
    config = StreamConfig(
        name=f"cuebook_{tag}",
        subjects=[f"cuebook.{tag}.log.1.>"],
        description=f"Cuebook's log of cluster {cluster!r}, format 1",
    )
    return config.evolve(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"description": "Cuebook's log of cluster 'x', format 99"}, "format 99, not Cuebook's log of"),
        ({"max_age": 3600}, "would forget decisions"),
        ({"max_msgs": 10}, "would forget decisions"),
        ({"storage": "memory"}, "would forget decisions"),
    ],
)
def test_a_stream_that_is_not_the_log_s_is_refused(
    server: NatsServer, settings: dict[str, object], sentence: str
) -> None:
    cluster = f"refused-{'-'.join(settings)}"

    async def run() -> None:
        async with await nats.connect(server.url) as client:
            await JetStreamContext(client).add_stream(stream_of(cluster, **settings))
            with pytest.raises(TransportError, match=sentence):
                await open_store(client, cluster)

    asyncio.run(run())


def solo_log(node: StreamedNode, *names: str) -> None:
    """What a node decided before it was in a cluster."""
    log = EventLog.open(node.log)
    facts = Facts(now=1.0, seed="s", epoch=1, node_id=node.node_id)
    for name in names:
        log.append(
            [
                Draft(
                    command=cancel(name),
                    facts=facts,
                    decider=decider.NAME,
                    decider_version=decider.VERSION,
                    events=[],
                )
            ]
        )
    log.close()


def commands(node: StreamedNode) -> list[str]:
    with LogReader.open(node.log) as reader:
        return [decision.command_id for decision in reader.decisions()]


def test_a_lone_node_s_log_becomes_the_cluster_s(tmp_path: Path, server: NatsServer) -> None:
    alone = StreamedNode(tmp_path, "node-a", "seeded", server.urls)
    names = [f"solo-{n}" for n in range(1200)]
    solo_log(alone, *names)
    with streamed_nodes(tmp_path, server.urls, "a", cluster="seeded") as (first,):
        first.decide("cluster-1")
        with streamed_nodes(tmp_path, server.urls, "b", cluster="seeded", lead=False) as (second,):
            eventually(lambda: commands(second) == commands(first))
        assert commands(first)[:1200] == names
        assert len(commands(first)) == 1202


def test_a_log_of_another_history_goes_to_a_branch_and_is_told(tmp_path: Path, server: NatsServer) -> None:
    with streamed_nodes(tmp_path, server.urls, "a", cluster="other") as (first,):
        first.decide("cluster-1", "cluster-2")
        stranger = StreamedNode(tmp_path, "node-b", "other", server.urls)
        solo_log(stranger, "solo-1", "solo-2")
        with streamed_nodes(tmp_path, server.urls, "b", cluster="other", lead=False) as (second,):
            eventually(lambda: commands(second) == commands(first))
            eventually(lambda: "branch 0 solo-1 solo-2" in second.said)
            with LogReader.open(second.log) as reader:
                (branch,) = reader.branches()
            assert (branch.fork, branch.decisions) == (0, 2)
            assert first.node_id in branch.winner


def test_a_stream_that_is_lost_is_made_anew_from_the_logs(tmp_path: Path, server: NatsServer) -> None:
    with streamed_nodes(tmp_path, server.urls, "ab", cluster="wiped") as nodes:
        master = next(node for node in nodes if node.leads)
        master.decide("before-1", "before-2")
        eventually(lambda: commands(nodes[0]) == commands(nodes[1]))
        before = commands(master)
        on(server, "wiped", lambda store: store.js.delete_stream(store.stream))
        eventually(lambda: any("after-1" in commands(node) for node in nodes) or _ask(nodes, "after-1"), 60)
        eventually(lambda: commands(nodes[0]) == commands(nodes[1]), 60)
        assert commands(nodes[0])[: len(before)] == before


def _ask(nodes: list[StreamedNode], command_id: str) -> bool:
    for node in nodes:
        if node.leads:
            node.ask(command_id)
    return False


def test_a_decision_that_no_message_can_hold_is_refused(tmp_path: Path, server: NatsServer) -> None:
    large = "x" * 1_000_000
    with streamed_nodes(tmp_path, server.urls, "a", cluster="large") as (node,):
        node.ask(large)
        eventually(lambda: node.answer(large))
        assert "which is more than the NATS servers take" in " ".join(node.answer(large))
        node.decide("after-1")
        assert [role for role, *_ in node.roles].count("Lead") == 1


def test_without_servers_nobody_leads_and_with_them_all_goes_on(tmp_path: Path) -> None:
    with nats_servers(tmp_path, 1) as (server,), streamed_nodes(tmp_path, server.urls, "ab") as nodes:
        master = next(node for node in nodes if node.leads)
        master.decide("before-1")
        server.kill()
        eventually(lambda: not any(node.leads for node in nodes))
        master.ask("during-1")
        eventually(lambda: master.answer("during-1"))
        assert master.answer("during-1")[0] == "failed"
        server.start()
        eventually(lambda: any(node.leads for node in nodes), 60)
        next(node for node in nodes if node.leads).decide("during-1", "after-1")
        eventually(lambda: commands(nodes[0]) == commands(nodes[1]))
        assert commands(master).count("during-1") == 1


def test_a_node_stops_though_its_servers_are_gone(tmp_path: Path) -> None:
    with nats_servers(tmp_path, 1) as (server,), streamed_nodes(tmp_path, server.urls, "a") as (node,):
        server.kill()
        began = time.monotonic()
        node.stop()
        assert time.monotonic() - began < 8
