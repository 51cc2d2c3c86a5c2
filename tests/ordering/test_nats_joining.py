"""How a node joins a long log whose order a NATS stream gives: with a base, with the past later."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed; install cuebook[nats] for this test")

import nats
from support.long_log import begins_after, digest
from support.mini_node import MiniNode, begins_near, few_are_long, given, given_base, same
from support.nats_servers import NatsServer, nats_servers
from support.served import eventually

from actors import archive, streamed_journal
from actors.address import Address
from actors.backfill import Backfiller
from actors.jetstream import lease, past
from actors.jetstream.client import JetStream
from actors.jetstream.store import open_store
from actors.jetstream.subscriber import Subscriber
from actors.journal import Journal
from actors.net.nats import Nats, NatsSettings
from actors.ordering.interface import Member
from actors.streamed_journal import StreamedJournal
from events.check import check
from events.reader import LogReader

DECISIONS = 400


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    few_are_long(monkeypatch)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_servers(tmp_path_factory.mktemp("nats"), 1) as (server,):
        yield server


class OnNats(MiniNode):
    def __init__(self, node_id: str, home: Path, settings: NatsSettings, *, fills: bool = True) -> None:
        self._settings = settings
        super().__init__(node_id, home, None, fills=fills)

    def _journal_of(self, me: Member) -> Journal:
        return StreamedJournal(me, self.paths, self._feed, lambda: JetStream(self._settings))

    def _filler(self, journal: Address, router: Address) -> Backfiller:
        return Backfiller(self.paths, journal, router, streamed=True)

    def _transport(self) -> Nats:
        return Nats(self._settings)


Start = Callable[..., OnNats]


@pytest.fixture
def settings(server: NatsServer, tmp_path: Path) -> NatsSettings:
    return NatsSettings(servers=server.urls, cluster=tmp_path.name)


@pytest.fixture
def start(settings: NatsSettings, tmp_path: Path) -> Iterator[Start]:
    """Start a node by its id, in a home of that name."""
    nodes = list[OnNats]()

    def start(node_id: str, *, fills: bool = True) -> OnNats:
        nodes.append(OnNats(node_id, tmp_path / node_id, settings, fills=fills))
        return nodes[-1]

    yield start
    for node in reversed(nodes):
        node.stop()


def leading(node: OnNats, name: str) -> OnNats:
    """The node leads: its log is the stream's. Leaves a record."""
    node.decide(name)
    return node


def decided_by(node: OnNats, name: str) -> str:
    with node.paths.reader() as reader:
        decision = reader.decision_of(name)
        assert decision is not None
        return decision.facts.node_id


def test_a_new_node_works_before_it_has_the_past(start: Start, tmp_path: Path) -> None:
    given(tmp_path / "a", DECISIONS)
    old, new = leading(start("a"), "first"), start("b", fills=False)
    new.decide("second")
    begins_near(new, old, DECISIONS)
    new.stop()
    again = start("b")
    eventually(lambda: same(old, again))
    again.decide("third")
    eventually(lambda: same(old, again))
    assert check(again.log).ok


def test_a_base_that_comes_before_the_stream_says_anything_is_begun_with(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(tmp_path / "a", DECISIONS)
    old = leading(start("a"), "first")
    begin, run, begun = JetStream.begun, Subscriber.run, threading.Event()

    def begin_early(client: JetStream) -> None:
        begin(client)
        begun.set()

    async def run_late(subscriber: Subscriber) -> None:
        while not begun.is_set():
            await asyncio.sleep(0.01)
        await run(subscriber)

    monkeypatch.setattr(JetStream, "begun", begin_early)
    monkeypatch.setattr(Subscriber, "run", run_late)
    new = start("b", fills=False)
    new.decide("second")
    begins_near(new, old, DECISIONS)


def test_a_short_log_is_taken_whole(start: Start, tmp_path: Path) -> None:
    given(tmp_path / "a", archive.LONG - 10)
    old, new = leading(start("a"), "first"), start("b", fills=False)
    new.decide("second")
    eventually(lambda: same(old, new))


def test_the_whole_stream_is_taken_where_nobody_has_a_base(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(tmp_path / "a", DECISIONS)
    leading(start("a"), "first").stop()
    monkeypatch.setattr(streamed_journal, "PATIENCE_S", 1.0)
    new = start("b", fills=False)
    new.decide("second")
    assert begins_after(new.log) == 0
    with LogReader.open(tmp_path / "a" / "log.db") as reader:
        assert new.last() > reader.last_decision() > DECISIONS
    assert check(new.log).ok


def test_a_node_without_the_past_leads_only_where_no_other_does(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(tmp_path / "a", DECISIONS)
    whole, lacking = leading(start("a"), "first"), start("b", fills=False)
    lacking.decide("second")
    whole.stop()
    time.sleep(1.5)  # others would have taken the lease, and it has a long time to go
    whole = start("a")
    lacking.decide("third")
    assert decided_by(lacking, "third") == "a"
    monkeypatch.setattr(lease, "HESITANT_S", 1.0)
    whole.stop()
    lacking.decide("fourth")
    assert decided_by(lacking, "fourth") == "b"


def test_a_node_that_has_got_the_past_leads_at_once(start: Start, tmp_path: Path) -> None:
    given(tmp_path / "a", DECISIONS)
    old, new = leading(start("a"), "first"), start("b")
    eventually(lambda: same(old, new))
    old.stop()
    new.decide("second")
    assert decided_by(new, "second") == "b"


def test_the_stream_gives_the_past_where_no_node_does(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HESITANT_S", 0.5)
    monkeypatch.setattr(past, "PAGE", 30)
    given(tmp_path / "a", DECISIONS)
    whole, lacking = leading(start("a"), "first"), start("b", fills=False)
    lacking.decide("second")
    lacking.stop()
    whole.stop()
    again = start("b")
    again.decide("third")
    eventually(lambda: begins_after(again.log) == 0)
    assert check(again.log).ok
    assert digest(again.log, whole.last()) == digest(whole.log, whole.last())


def test_a_fork_before_the_base_sets_the_log_aside_and_joins_again(start: Start, tmp_path: Path) -> None:
    given(tmp_path / "a", 200)
    other = leading(start("a"), "first")
    given_base(tmp_path / "b", 210, 205)
    node = start("b")
    eventually((tmp_path / "b" / "aside-1.db").exists)
    eventually(lambda: node.has_log() and same(other, node))
    node.decide("second")


def test_a_lost_stream_is_made_anew_by_who_has_the_past(
    start: Start, tmp_path: Path, settings: NatsSettings
) -> None:
    given(tmp_path / "a", DECISIONS)
    whole, lacking = leading(start("a"), "first"), start("b", fills=False)
    lacking.decide("second")

    async def lose() -> None:
        async with await nats.connect(settings.servers[0]) as client:
            store = await open_store(client, settings.cluster)
            await store.js.delete_stream(store.stream)

    asyncio.run(lose())
    eventually(lambda: _decides(lacking, "third"), 60)
    assert decided_by(lacking, "third") == "a"
    eventually(lambda: whole.last() == lacking.last())
    assert begins_after(lacking.log) > 0


def _decides(node: OnNats, name: str) -> bool:
    try:
        node.decide(name)
    except Exception:
        return False
    return True
