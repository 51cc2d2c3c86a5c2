"""How a node joins a long log: with a base first, with the past later, whatever happens in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.long_log import begins_after
from support.mini_node import MiniNode, begins_near, few_are_long, given, given_base, same
from support.served import eventually

from actors import archive
from actors.deferred import Deferred
from actors.joining import TRIES, Entry, Newcomer, NotYet, Offer, Offered, Wait, encode_offer
from actors.log_aside import open_log
from actors.net.memory import MemoryHub
from actors.net.transport import LinkLost
from actors.ordering.messages import Join
from actors.replica import Paths
from events.drivers import STDLIB
from events.reader import LogReader

DECISIONS = 400


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    few_are_long(monkeypatch)


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


def test_a_new_node_works_before_it_has_the_past(start: Start, tmp_path: Path) -> None:
    given(tmp_path / "a", DECISIONS)
    old, new = start("a"), start("b", fills=False)
    new.decide("first")
    begins_near(new, old, DECISIONS)
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


class Waiting:
    """An empty log on a stream, whose request the test answers."""

    def __init__(self) -> None:
        self.asked: list[Deferred[bytes]] = []
        self.told: list[Offered] = []
        self.wait = Wait(self.told.append)

    def seek(self) -> None:
        self.wait.seek(self._ask)

    def _ask(self) -> Deferred[bytes]:
        self.asked.append(Deferred[bytes]())
        return self.asked[-1]


def test_on_a_stream_one_request_is_on_its_way_and_some_may_fail(tmp_path: Path) -> None:
    it, offer = Waiting(), an_offer(tmp_path)
    for n in range(TRIES - 1):
        it.seek()
        it.seek()
        it.asked[n].fail(LinkLost("it is gone"))
        with pytest.raises(NotYet):
            it.wait.answered(it.told[n])
    it.seek()
    it.asked[-1].resolve(encode_offer(offer))
    assert it.wait.answered(it.told[-1]) == offer
    assert len(it.asked) == TRIES


def test_on_a_stream_the_whole_log_is_taken_after_the_last_failure() -> None:
    it = Waiting()
    for n in range(TRIES):
        it.seek()
        it.asked[n].fail(LinkLost("it is gone"))
        if n < TRIES - 1:
            with pytest.raises(NotYet):
                it.wait.answered(it.told[n])
    assert it.wait.answered(it.told[-1]) is None


def test_on_a_stream_a_request_that_is_due_when_time_is_up_is_the_last() -> None:
    it = Waiting()
    assert it.wait.expired()
    it.seek()
    assert not it.wait.expired()
    it.asked[0].fail(LinkLost("it is gone"))
    assert it.wait.answered(it.told[0]) is None
