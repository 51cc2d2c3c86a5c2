"""How a node joins a long log: with a base first, with the past later, whatever happens in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.histories import History, write_log
from support.long_log import begins_after, digest
from support.served import eventually

from actors import archive
from actors.actor import spawn
from actors.address import Address
from actors.archive import Archive
from actors.backfill import Backfiller
from actors.clock import SYSTEM_CLOCK
from actors.deferred import Deferred
from actors.joining import TRIES, Entry, Newcomer, Offer, Offered, encode_offer
from actors.journal import Journal
from actors.log_aside import open_log
from actors.master import Master
from actors.net.memory import MemoryHub, MemoryTransport
from actors.net.transport import LinkLost, Peer
from actors.ordering.interface import Member, Timing
from actors.ordering.messages import Join
from actors.replica import Paths
from actors.reporter import Reporter
from actors.restarts import RestartPolicy
from actors.router import Router
from actors.streams import TokenHub
from actors.supervision import ChildSpec, Supervisor
from actors.system import ActorSystem
from events.commands import CancelTasks
from events.drivers import STDLIB
from events.errors import LogMissing
from events.feed import CommitFeed
from events.ids import fresh
from events.log import EventLog
from events.reader import LogReader
from events.values import Policy
from projections.snapshot import load_state, pack, save_base

DECISIONS = 400
TIMING = Timing(settle=0.2, lone=0.3, patience=2.0, beat=0.2, retry=0.3)
QUICK = RestartPolicy(max_restarts=50, backoff_base_s=0.01, backoff_cap_s=0.02)


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred decisions are a long log here."""
    for name, value in {"LONG": 100, "MARGIN": 20, "PAGE": 50}.items():
        monkeypatch.setattr(archive, name, value)


class MiniNode:
    """The actors of a node that keep its log, on links in memory."""

    def __init__(self, node_id: str, home: Path, network: MemoryHub, *, fills: bool = True) -> None:
        self.node_id = node_id
        self.paths = Paths(home / "log.db", home / "snapshots", STDLIB)
        self._feed = CommitFeed(self.paths.log)
        self._hub = TokenHub(node_id)
        self._network = network
        home.mkdir(exist_ok=True)
        journal = ChildSpec("journal", self._journal)
        master = ChildSpec("master", lambda: self._master(journal.address, router.address))
        self._reporter = Reporter(master.address, SYSTEM_CLOCK)
        keeper = ChildSpec("archive", lambda: Archive(self.paths))
        router = ChildSpec("router", lambda: self._router(journal.address, master.address, keeper.address))
        filler = ChildSpec("backfiller", lambda: Backfiller(self.paths, journal.address, router.address))
        children = [journal, master, keeper, router, *([filler] if fills else [])]
        self.master = master.address
        self._supervisor = Supervisor(children, strategy="rest_for_one", policy=QUICK)
        self._root = spawn(self._supervisor, f"root of {node_id}", ActorSystem(observer=lambda _: None))

    def _journal(self) -> Journal:
        self._incarnation = fresh("start")
        return Journal(Member(self.node_id, self._incarnation), self.paths, self._feed, TIMING)

    def _master(self, journal: Address, router: Address) -> Master:
        return Master(self.node_id, self._incarnation, journal, router, self.paths, self._feed, Policy())

    def _router(self, journal: Address, master: Address, keeper: Address) -> Router:
        me = Peer(node_id=self.node_id, name=self.node_id, version="0", api_url="")
        return Router(me, MemoryTransport(self._network), journal, master, keeper, self._hub, self._reporter)

    def stop(self) -> None:
        self._supervisor.stop()
        assert self._root.join(20) is not None
        self._reporter.close()

    @property
    def log(self) -> Path:
        return self.paths.log

    def decide(self, name: str) -> None:
        """A command that leaves a record and changes nothing."""
        self.master.ask(CancelTasks(command_id=name, task_ids=["none"], reason=""), 20)

    def has_log(self) -> bool:
        """False for a moment while the log is set aside."""
        try:
            self.paths.reader().close()
        except LogMissing:
            return False
        return True

    def last(self) -> int:
        with self.paths.reader() as reader:
            return reader.last_decision()


Start = Callable[..., MiniNode]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a node by its id, in a home of that name."""
    network, nodes = MemoryHub(), list[MiniNode]()

    def start(node_id: str, *, fills: bool = True) -> MiniNode:
        nodes.append(MiniNode(node_id, tmp_path / node_id, network, fills=fills))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


def given(home: Path, decisions: int) -> None:
    """The log that a node begins with: a prefix of one history."""
    home.mkdir()
    write_log(home / "log.db", History(3).take(decisions))


def given_base(home: Path, decisions: int, at: int) -> None:
    """A log of the same history that begins after decision ``at``."""
    given(home, decisions)
    with LogReader.open(home / "log.db") as reader:
        base, tail = reader.base_at(at), reader.entries(at, decisions, 10**9)
        save_base(pack(reader, None, base.seq), base, home / "snapshots")
    (home / "log.db").unlink()
    log = EventLog.open(home / "log.db")
    log.begin_after(base)
    log.append_entries(tail)
    log.close()


def same(*nodes: MiniNode) -> bool:
    """All logs have their past, and the same rows."""
    heads = {node.last() for node in nodes}
    if len(heads) > 1 or any(begins_after(node.log) for node in nodes):
        return False
    return len({digest(node.log, node.last()) for node in nodes}) == 1


def test_a_new_node_works_before_it_has_the_past(start: Start, tmp_path: Path) -> None:
    given(tmp_path / "a", DECISIONS)
    old, new = start("a"), start("b", fills=False)
    new.decide("first")
    assert begins_after(new.log) > DECISIONS - 50
    with new.paths.reader() as mine, old.paths.reader() as theirs:
        upto = mine.head()
        assert load_state(mine, new.paths.snapshots, upto) == load_state(theirs, None, upto)
    new.stop()
    again = start("b")
    eventually(lambda: same(old, again))
    again.decide("second")
    eventually(lambda: same(old, again))


def test_a_short_log_is_taken_whole(start: Start, tmp_path: Path) -> None:
    given(tmp_path / "a", archive.LONG - 10)
    old, new = start("a"), start("b", fills=False)
    new.decide("first")
    eventually(lambda: same(old, new))


def test_the_past_comes_from_who_has_it(start: Start, tmp_path: Path) -> None:
    """The first that is asked has some of it."""
    given(tmp_path / "m", DECISIONS)
    given_base(tmp_path / "a", DECISIONS, 100)
    given_base(tmp_path / "z", DECISIONS, 300)
    whole = start("m")
    nodes = [whole, start("a", fills=False), start("z")]
    eventually(lambda: begins_after(nodes[2].log) == 0)
    assert begins_after(nodes[1].log) == 100
    nodes[1].stop()
    nodes[1] = start("a")
    eventually(lambda: same(*nodes))


def test_a_node_without_the_past_lets_others_lead(start: Start, tmp_path: Path) -> None:
    given(tmp_path / "a", DECISIONS)
    given_base(tmp_path / "b", DECISIONS, 300)
    lacking, whole = start("b", fills=False), start("a")
    lacking.decide("first")
    with whole.paths.reader() as reader:
        decision = reader.decision_of("first")
        assert decision is not None
        assert decision.facts.node_id == "a"


def test_a_fork_before_the_base_sets_the_log_aside_and_joins_again(start: Start, tmp_path: Path) -> None:
    given(tmp_path / "a", 200)
    other = start("a")
    other.decide("first")
    given_base(tmp_path / "b", 210, 205)
    node = start("b")
    eventually((tmp_path / "b" / "aside-1.db").exists)
    eventually(lambda: node.has_log() and same(other, node))
    node.decide("second")
    with LogReader.open(tmp_path / "b" / "aside-1.db") as aside:
        assert (aside.last_decision(), begins_after(tmp_path / "b" / "aside-1.db")) == (210, 205)


def test_a_base_without_its_state_is_set_aside(tmp_path: Path) -> None:
    given_base(tmp_path / "b", DECISIONS, 300)
    paths = Paths(tmp_path / "b" / "log.db", tmp_path / "b" / "snapshots", STDLIB)
    log = open_log(paths)
    assert log.last_decision == DECISIONS
    log.close()
    shutil.rmtree(paths.snapshots)
    for _ in range(2):
        log = open_log(paths)
        assert log.last_decision == 0
        log.close()
    assert [path.name for path in paths.log.parent.glob("aside-*")] == ["aside-1.db"]


class Asked:
    """A newcomer whose requests the test answers."""

    def __init__(self) -> None:
        self.answers: dict[str, Deferred[bytes]] = {}
        self.told: list[Offered] = []
        self.newcomer = Newcomer(self._ask, self.told.append)

    def _ask(self, node_id: str) -> Deferred[bytes]:
        assert node_id not in self.answers, "asked twice"
        self.answers[node_id] = Deferred[bytes]()
        return self.answers[node_id]


def join(ticket: str) -> Join:
    return Join(ticket=ticket, promised=0, runs=[])


def an_offer(tmp_path: Path) -> Offer:
    given(tmp_path / "log", 5)
    with LogReader.open(tmp_path / "log" / "log.db") as reader:
        return Offer(reader.base_at(5), b"state")


def test_the_newest_request_is_let_through_with_the_answer(tmp_path: Path) -> None:
    it, offer = Asked(), an_offer(tmp_path)
    it.newcomer.hold("m", join("1"))
    it.newcomer.hold("m", join("2"))
    it.answers["m"].resolve(encode_offer(offer))
    (told,) = it.told
    assert it.newcomer.answered(told) == ("m", join("2"), offer)
    assert it.newcomer.answered(told) is None


def test_the_answer_of_a_master_that_is_none_any_more_is_dropped(tmp_path: Path) -> None:
    it = Asked()
    it.newcomer.hold("m", join("1"))
    it.newcomer.hold("n", join("2"))
    it.answers["m"].resolve(encode_offer(an_offer(tmp_path)))
    assert it.newcomer.answered(it.told[0]) is None
    it.answers["n"].resolve(encode_offer(None))
    assert it.newcomer.answered(it.told[1]) == ("n", join("2"), None)


def test_a_master_that_can_not_offer_a_base_is_joined_without() -> None:
    it = Asked()
    entries: list[Entry | None] = []
    for n in range(TRIES):
        it.newcomer.hold("m", join(str(n)))
        it.answers.pop("m").fail(LinkLost("it is gone"))
        entries.append(it.newcomer.answered(it.told[n]))
    assert entries == [*[None] * (TRIES - 1), ("m", join(str(TRIES - 1)), None)]
