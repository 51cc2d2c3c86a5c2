"""Journal, Master and Reporter over a real log: group commit, idempotency, crashes that lose nothing."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cards import QUANTIZED, SMALL
from support.cluster import NODE, POLICY, node_started

from actors import decider
from actors.actor import Actor, spawn
from actors.address import Address
from actors.clock import ManualClock
from actors.deferred import Deferred
from actors.journal import Append, Flush, Journal, PeerDown
from actors.mailbox import Mailbox
from actors.master import Master
from actors.ordering.interface import Member
from actors.refusal import MailboxFull, Rejected, StartFailed, Stopped
from actors.remote import Unchanged
from actors.replica import Paths
from actors.reporter import RESEND_S, Reporter
from actors.restarts import RestartPolicy
from actors.supervision import ChildSpec, Supervisor
from actors.system import ActorIncident, ActorSystem
from events import commands as cmd
from events.base import Command, Report
from events.commands import Facts
from events.drivers import STDLIB
from events.feed import CommitFeed
from events.ids import fresh
from events.log import EventLog
from events.reader import LogReader
from events.record import Committed, Draft
from events.to_rows import EncodedDraft
from events.values import Cause, ModelSource, PlacementSettings
from projections.snapshot import load_state
from projections.state import ClusterState

ASKERS = 64
QUICK = RestartPolicy(max_restarts=50, backoff_base_s=0.01, backoff_cap_s=0.02)


class Start:
    """A node's start: a journal, and with each new one a new incarnation, and masters."""

    def __init__(self, directory: Path) -> None:
        self.paths = Paths(directory / "log.db", directory / "snapshots", STDLIB)
        self.feed = CommitFeed(self.paths.log)
        self.masters: list[Master] = []
        self.journal = ChildSpec("journal", self._new_journal)
        self.master = ChildSpec("master", self._new_master)

    def _new_journal(self) -> Journal:
        self._incarnation = fresh("run")
        return Journal(Member(NODE, self._incarnation), self.paths, self.feed)

    def _new_master(self) -> Master:
        journal, nobody = self.journal.address, Address("router")
        self.masters.append(Master(NODE, self._incarnation, journal, nobody, self.paths, self.feed, POLICY))
        return self.masters[-1]


@dataclass
class Core:
    """A journal and a master under a supervisor, as in a node, and the masters and journals so far."""

    paths: Paths
    root: Address
    master: Address
    journal: Address
    masters: list[Master]
    feed: CommitFeed

    def ask(self, command: Command, seconds: float = 20.0) -> Committed:
        return self.master.ask(command, seconds)

    def state(self) -> ClusterState:
        """The living master's own state, when it has nothing more to do."""
        self.master.ask(cmd.CancelTasks(command_id="nothing-to-do", task_ids=[], reason=""), 20)
        state = self.masters[-1]._state
        assert state is not None, "it leads"
        return state

    def replayed(self) -> ClusterState:
        with self.paths.reader() as reader:
            return load_state(reader)

    def decided(self, command_id: str) -> Committed | None:
        with self.paths.reader() as reader:
            return reader.decision_of(command_id)


@contextmanager
def running(directory: Path) -> Iterator[Core]:
    """A start of the node whose log is in ``directory``, until the block ends."""
    start = Start(directory)
    supervisor = Supervisor([start.journal, start.master], strategy="rest_for_one", policy=QUICK)
    root = spawn(supervisor, "root", ActorSystem(observer=lambda _: None))
    try:
        yield Core(start.paths, root, start.master.address, start.journal.address, start.masters, start.feed)
    finally:
        supervisor.stop()
        assert root.join(20) is not None


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    with running(tmp_path) as core:
        core.ask(node_started(NODE))
        yield core


def describe(n: int, *, path: str = "") -> cmd.ReportModel:
    return cmd.ReportModel(
        command_id=f"describe-{n}",
        origin=NODE,
        card=SMALL if n % 2 else QUANTIZED,
        source=ModelSource(kind="hub", location=f"some/model-{n}"),
        path=path,
        size_bytes=n,
    )


def readings(n: int) -> cmd.ReportResources:
    """A report that always changes something."""
    return cmd.ReportResources(
        command_id=f"reading-{n}", origin=NODE, memory_available=(1 + n % 2 * 12) << 30, disk_free=n + 1
    )


def place(command_id: str, model_id: str = SMALL.model_id) -> cmd.PlaceInstance:
    return cmd.PlaceInstance(
        command_id=command_id, model_id=model_id, settings=PlacementSettings(context=512, batch=1)
    )


TRAFFIC = [place(f"place-{n}") for n in range(400)]
"""Accepted until the memory is used up, then refused with the numbers."""


def persist(core: Core, command: Command) -> Committed | Rejected:
    """Ask until there is an answer, as the edges do."""
    while True:
        try:
            return core.ask(command)
        except Rejected as refusal:
            return refusal
        except (Stopped, MailboxFull, OSError):
            time.sleep(0.01)


def test_64_askers_share_few_commits(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    append = EventLog.append

    def counted(log: EventLog, drafts: list[Draft]) -> list[Committed]:
        batches.append(len(drafts))
        time.sleep(0.02)  # a disk that takes its time
        return append(log, drafts)

    monkeypatch.setattr(EventLog, "append", counted)
    with ThreadPoolExecutor(ASKERS) as pool:
        answers = list(pool.map(lambda n: core.ask(_cancel(n)), range(10 * ASKERS)))
    assert [answer.command_id for answer in answers] == [f"cancel-{n}" for n in range(10 * ASKERS)]
    assert sum(batches) == 10 * ASKERS
    assert len(batches) < 10 * ASKERS / 8, f"{len(batches)} commits"
    assert core.state() == core.replayed()


def _cancel(n: int) -> cmd.CancelTasks:
    return cmd.CancelTasks(command_id=f"cancel-{n}", task_ids=[f"task-{n}"], reason="the client has gone")


def test_a_repeated_command_gets_the_first_answer(core: Core) -> None:
    core.ask(describe(1))
    first = core.ask(place("place-1"))
    assert core.ask(place("place-1")) == first
    assert len(core.state().instances) == 1


def test_a_command_repeated_while_it_is_on_its_way_is_decided_once(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.ask(describe(1))
    go = _hold_appends(monkeypatch)
    answers = [core.master.ask_future(place("place-1")) for _ in range(10)]
    go.set()
    assert len({answer.get(timeout=20).decision_id for answer in answers}) == 1
    assert len(core.state().instances) == 1


def test_another_body_under_a_used_key_is_refused(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    core.ask(describe(1))
    go = _hold_appends(monkeypatch)
    first = core.master.ask_future(place("place-1"))
    with pytest.raises(Rejected, match="being decided") as in_flight:
        core.ask(cmd.DeleteInstance(command_id="place-1", instance_id="instance-1"))
    assert in_flight.value.cause.code == "idempotency_key_reused"
    go.set()
    decision = first.get(timeout=20)
    with pytest.raises(Rejected, match=f"decision {decision.decision_id}") as later:
        core.ask(place("place-1", QUANTIZED.model_id))
    assert later.value.cause.code == "idempotency_key_reused"


def test_a_rejection_is_stored_raised_and_repeated(core: Core) -> None:
    for _ in range(2):
        with pytest.raises(Rejected) as refused:
            core.ask(place("place-1", "unheard-of"))
        assert refused.value.cause.code == "model_not_found"
    stored = core.decided("place-1")
    assert stored is not None
    assert stored.rejection == refused.value.cause
    assert stored.events == []


def test_a_report_without_news_leaves_no_record(core: Core) -> None:
    core.ask(describe(1))
    again = describe(1)
    gone = cmd.ReportModelGone(command_id="gone", origin=NODE, model_id="unheard-of")
    assert core.master.ask(gone, 20) == Unchanged(core.replayed().seq)
    assert core.decided("gone") is None
    assert core.ask(again) == core.decided("describe-1")


def test_a_report_is_no_news_only_once_that_is_on_the_disk(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = _hold_appends(monkeypatch)
    news = core.master.ask_future(readings(1))
    again = core.master.ask_future(msgspec.structs.replace(readings(1), command_id="again"))
    assert not again.wait(0.3)
    go.set()
    assert again.get(timeout=20) == Unchanged(news.get(timeout=20).events[-1].seq)


def test_a_stale_decision_never_gets_into_the_log(core: Core) -> None:
    head = core.journal.ask(Flush(), 20)
    reply = Deferred[Committed]()
    core.journal.tell(Append(EncodedDraft(_without_events(_cancel(1))), head - 1, reply))
    with pytest.raises(Stopped):
        reply.get(timeout=20)
    assert persist(core, _cancel(2))
    assert core.decided("cancel-1") is None


def _without_events(command: Command) -> Draft:
    facts = Facts(now=1.0, seed="seed", epoch=1, node_id=NODE)
    return Draft(
        command=command, facts=facts, decider=decider.NAME, decider_version=decider.VERSION, events=[]
    )


def test_a_decision_is_committed_when_what_came_with_it_was_no_decision(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as another node's word, which arrives while the decision is taken up."""
    empty, looked = Mailbox.empty, threading.Event()

    def full_once(mailbox: Mailbox) -> bool:
        first = not looked.is_set()
        looked.set()
        return not first and empty(mailbox)

    monkeypatch.setattr(Mailbox, "empty", full_once)
    answer = core.master.ask_future(describe(1))
    assert looked.wait(20)
    core.journal.tell_system(PeerDown("node-z", "its word came at the same time"))
    assert answer.get(timeout=20) == core.decided("describe-1")


def test_what_no_log_can_hold_is_refused_and_harms_nobody(core: Core) -> None:
    """Such as the path of a directory whose name is not UTF-8."""
    with pytest.raises(Rejected, match="surrogates not allowed") as refused:
        core.ask(describe(1, path="/models/caf\udce9"))
    assert refused.value.cause.code == "not_recordable"
    assert core.ask(describe(1)).command_id == "describe-1"
    assert len(core.masters) == 1
    assert core.state() == core.replayed()


@pytest.mark.parametrize("crash", ["before", "after"])
def test_a_journal_that_crashes_in_traffic_loses_nothing_acknowledged(
    core: Core, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    """The disk fails once before the commit, and once after it where nobody can tell any more."""
    append, calls = EventLog.append, []

    def failing(log: EventLog, drafts: list[Draft]) -> list[Committed]:
        calls.append(len(drafts))
        if len(calls) in (5, 20):
            if crash == "after":
                append(log, drafts)
            log._failed = True
            raise sqlite3.OperationalError("disk I/O error")
        return append(log, drafts)

    core.ask(describe(1))
    monkeypatch.setattr(EventLog, "append", failing)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(partial(persist, core), TRAFFIC))
    _nothing_lost(core, answers, epochs=3)
    assert len(core.masters) == 3


def test_a_master_that_crashes_in_traffic_loses_nothing_acknowledged(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, calls = decider.decide, []

    def failing(state: ClusterState, command: Command, facts: Facts) -> list[Any]:
        calls.append(command)
        if len(calls) in (50, 150):
            raise OSError("a bug")
        return decide(state, command, facts)

    core.ask(describe(1))
    monkeypatch.setattr(decider, "decide", failing)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(partial(persist, core), TRAFFIC))
    _nothing_lost(core, answers, epochs=1)
    assert len(core.masters) == 3


def _nothing_lost(core: Core, answers: list[Committed | Rejected], *, epochs: int) -> None:
    """Every answer is in the log as it was given, once; the state is the replayed one."""
    for command, answer in zip(TRAFFIC, answers, strict=True):
        decided = core.decided(command.command_id)
        assert decided is not None
        assert answer == decided if isinstance(answer, Committed) else answer.cause == decided.rejection
    with core.paths.reader() as reader:
        decisions = list(reader.decisions())
    assert len({decision.command_id for decision in decisions}) == len(decisions)
    assert len(core.replayed().instances) > 5
    assert core.state() == core.replayed()
    assert core.replayed().epoch == epochs, "a new journal is a new term, a new master alone is none"


def test_a_master_waits_for_a_slow_disk_and_its_senders_are_told(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.master.MAX_IN_FLIGHT", 16)
    core.masters[-1].mailbox.bound = 32
    go = _hold_appends(monkeypatch)
    answers: list[Deferred[Any]] = []
    for n in range(16 + 32 + 1):
        answers.append(core.master.ask_future(_cancel(n)))
        time.sleep(0.002)
    with pytest.raises(MailboxFull):
        core.master.ask_future(_cancel(1000))
    go.set()
    assert all(answer.get(timeout=20) for answer in answers)
    assert len(core.masters) == 1


def _hold_appends(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    go, append = threading.Event(), EventLog.append

    def held(log: EventLog, drafts: list[Draft]) -> list[Committed]:
        assert go.wait(20)
        return append(log, drafts)

    monkeypatch.setattr(EventLog, "append", held)
    return go


def test_a_new_start_begins_a_new_epoch(tmp_path: Path) -> None:
    for epoch in (1, 2):
        with running(tmp_path) as core:
            core.ask(_cancel(epoch))
            assert core.state().epoch == core.replayed().epoch == epoch


# The reporter


class Taker(Actor):
    """Answers reports, or fails them as it is told."""

    def __init__(self, taken: list[str], answer: Callable[[Report], BaseException | None]) -> None:
        super().__init__()
        self._taken = taken
        self._answer = answer

    def receive(self, message: Report) -> None:
        error = self._answer(message)
        if error is not None:
            raise error
        self._taken.append(message.command_id)


def test_reports_go_out_again_in_their_order(
    clock: ManualClock,
    system: ActorSystem,
    incidents: list[ActorIncident],
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    taken: list[str] = []
    spec = ChildSpec("master", lambda: Taker(taken, lambda _: None))
    reporter = Reporter(spec.address, clock)
    for n in range(3):
        reporter.send(readings(n))
    assert len(reporter) == 3
    actor = spec.start()
    actor.launch(spec.address, system)
    actor.wait_started(5)
    reporter.send(readings(3))
    assert taken == [], "it waits behind those before it"
    clock.advance(RESEND_S)
    eventually(lambda: len(reporter) == 0)
    assert taken == [f"reading-{n}" for n in range(4)]


def test_a_full_mailbox_holds_reports_back_and_sends_none_twice(
    clock: ManualClock, system: ActorSystem, eventually: Callable[[Callable[[], object]], None]
) -> None:
    taken: list[str] = []
    go = threading.Event()

    def slow(_: Report) -> None:
        assert go.wait(10)

    actor = Taker(taken, slow)
    address = Address("master")
    actor.launch(address, system)
    actor.mailbox.bound = 3
    actor.wait_started(5)
    reporter = Reporter(address, clock)
    reporter.send(readings(0))
    eventually(lambda: len(actor.mailbox) == 0)
    for n in range(1, 8):
        reporter.send(readings(n))
    for _ in range(3):
        clock.advance(RESEND_S)
        assert len(actor.mailbox) == 3
    go.set()

    def all_taken() -> bool:
        clock.advance(RESEND_S)
        return len(reporter) == 0

    eventually(all_taken)
    assert taken == [f"reading-{n}" for n in range(8)]


def test_a_refused_report_is_done_with(
    clock: ManualClock, system: ActorSystem, eventually: Callable[[Callable[[], object]], None]
) -> None:
    refusal = Rejected(Cause(code="no", message="No."))
    address = spawn(Taker([], lambda _: refusal), "master", system)
    reporter = Reporter(address, clock)
    reporter.send(readings(0))
    eventually(lambda: len(reporter) == 0)
    assert address.alive


def test_a_closed_reporter_sets_no_more_timers(clock: ManualClock) -> None:
    reporter = Reporter(Address("nobody"), clock)
    reporter.send(readings(0))
    reporter.close()
    clock.advance(10 * RESEND_S)
    assert clock.next_due() is None


def test_the_log_of_all_this_can_be_read_from_outside(core: Core) -> None:
    core.ask(describe(1))
    with LogReader.open(core.paths.log) as reader:
        assert reader.head() == core.journal.ask(Flush(), 20)


def test_a_master_that_did_not_start_does_not_gather_the_log(tmp_path: Path, system: ActorSystem) -> None:
    """Each failed start would keep all that is committed from then on."""
    log = EventLog.open(tmp_path / "log.db")
    log.append([_without_events(_cancel(0))])
    feed, nobody = CommitFeed(tmp_path / "log.db"), Address("journal")
    paths = Paths(tmp_path / "log.db", tmp_path / "snapshots", STDLIB)
    master = Master(NODE, "run", nobody, nobody, paths, feed, POLICY)
    with pytest.raises(StartFailed):
        spawn(master, "master", system)
    feed.publish(log.append([_without_events(_cancel(1))]))
    assert master.mailbox.empty()
    log.close()
