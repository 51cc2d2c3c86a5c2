from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from actors.actor import Actor, spawn
from actors.address import Address, Incarnation, Terminated
from actors.clock import ManualClock
from actors.deferred import Deferred
from actors.mailbox import Mailbox
from actors.refusal import Rejected, StartFailed, Stopped
from actors.restarts import RestartPolicy
from actors.supervision import AddChild, ChildSpec, Escalation, StopChild, Strategy, Supervisor
from actors.system import ActorIncident, ActorSystem

Eventually = Callable[[Callable[[], object]], None]

CRASH, QUIT = "crash", "quit"


class Player(Actor):
    """Writes its starts and ends into a book that all share."""

    def __init__(self, book: list[str], failing_starts: list[bool] | None = None) -> None:
        super().__init__()
        self.book = book
        self.failing_starts = failing_starts

    def started(self) -> None:
        if self.failing_starts and self.failing_starts.pop(0):
            raise OSError("no stage")
        self.book.append(f"+{self.name}")

    def stopping(self) -> None:
        self.book.append(f"-{self.name}")

    def receive(self, message: Any) -> Any:
        if message == CRASH:
            raise ValueError("forgot the line")
        if message == QUIT:
            self.stop()
        return self.actor_urn


class Company:
    """A supervisor over players a, b and c, on a clock that stands still."""

    def __init__(self, system: ActorSystem, clock: ManualClock, eventually: Eventually) -> None:
        self.system, self.clock, self.eventually = system, clock, eventually
        self.book: list[str] = []

    def open(self, strategy: Strategy = "one_for_one", **options: Any) -> None:
        kinds: dict[str, Any] = options.pop("kinds", {})
        policy = RestartPolicy(backoff_base_s=1.0, jitter=0.0, **options)
        self.specs = {
            name: ChildSpec(name, lambda: Player(self.book), restart=kinds.get(name, "permanent"))
            for name in "abc"
        }
        self.supervisor = Supervisor(list(self.specs.values()), strategy=strategy, policy=policy)
        self.address = spawn(self.supervisor, "company", self.system)
        self.book.clear()

    def at(self, name: str) -> Address:
        return self.specs[name].address

    def crash(self, name: str) -> None:
        with pytest.raises(ValueError, match="forgot the line"):
            self.at(name).ask(CRASH, 5)
        self.eventually(lambda: self.clock.next_due() is not None)

    def restart(self, *names: str) -> None:
        due = self.clock.next_due()
        assert due is not None
        self.clock.advance(due - self.clock.monotonic())
        self.eventually(lambda: self.book[-len(names) :] == [f"+{name}" for name in names])

    def settle(self) -> None:
        """Returns when the supervisor has handled all that was sent to it before."""
        with pytest.raises(Rejected):
            self.address.ask("anything", 5)


@pytest.fixture
def company(system: ActorSystem, clock: ManualClock, eventually: Eventually) -> Company:
    return Company(system, clock, eventually)


def test_children_start_in_order_and_stop_in_reverse(system: ActorSystem) -> None:
    book: list[str] = []
    specs = [ChildSpec(name, lambda: Player(book)) for name in "abc"]
    supervisor = Supervisor(specs)
    address = spawn(supervisor, "company", system)
    assert book == ["+a", "+b", "+c"]
    supervisor.stop()
    assert address.join(5) == Terminated("company", supervisor.actor_urn, None)
    assert book[3:] == ["-c", "-b", "-a"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", ["-b", "+b"]),
        ("rest_for_one", ["-b", "-c", "+b", "+c"]),
        ("one_for_all", ["-b", "-c", "-a", "+a", "+b", "+c"]),
    ],
)
def test_a_crash_restarts_whom_the_strategy_says(
    company: Company, strategy: Strategy, expected: list[str]
) -> None:
    company.open(strategy)
    company.crash("b")
    company.restart(*[entry[1] for entry in expected if entry[0] == "+"])
    assert company.book == expected


def test_an_address_survives_restarts_and_between_them_asks_fail_and_tells_are_counted(
    company: Company, incidents: list[ActorIncident]
) -> None:
    company.open()
    first = company.at("b").ask("urn", 5)
    company.crash("b")
    with pytest.raises(Stopped):
        company.at("b").ask("urn", 5)
    company.at("b").tell("lost")
    company.restart("b")
    assert company.at("b").ask("urn", 5) != first
    company.eventually(lambda: len(incidents) == 3)
    crashed, lost, restarted = incidents
    assert (crashed.actor, crashed.action) == ("b", "crashed")
    assert crashed.error.startswith("ValueError: forgot the line (test_supervision.py:")
    assert (lost.actor, lost.action, lost.dead_letters, lost.error) == ("b", "dead_letters", 1, "str")
    assert (restarted.actor, restarted.action, restarted.restarts) == ("b", "restarted", 1)
    assert restarted.error.startswith("ValueError: forgot the line")


def test_backoff_doubles_and_nothing_starts_before_its_time(company: Company) -> None:
    company.open()
    for wait in (1.0, 2.0, 4.0):
        begin = company.clock.monotonic()
        company.crash("a")
        company.clock.advance(wait - 0.01)
        company.settle()
        assert company.book[-1] == "-a"
        company.restart("a")
        assert company.clock.monotonic() - begin == pytest.approx(wait)


def test_more_crashes_than_allowed_escalate_and_stop_the_others(
    company: Company, incidents: list[ActorIncident]
) -> None:
    company.open(max_restarts=2, period_s=100.0)
    for name in ("a", "b"):
        company.crash(name)
        company.restart(name)
    company.at("c").tell(CRASH)
    end = company.address.join(5)
    assert end is not None
    assert isinstance(end.cause, Escalation)
    assert isinstance(end.cause.__cause__, ValueError)
    assert company.book[-3:] == ["-c", "-b", "-a"]
    assert ("c", "escalated") in [(each.actor, each.action) for each in incidents]


def test_crashes_that_lie_further_apart_than_the_period_never_escalate(company: Company) -> None:
    company.open(max_restarts=1, period_s=30.0)
    for _ in range(4):
        company.crash("a")
        company.restart("a")
        company.clock.advance(30.0)
    assert company.address.alive


def test_the_supervisor_above_restarts_the_one_that_gave_up_with_the_same_addresses(
    system: ActorSystem, clock: ManualClock, eventually: Eventually
) -> None:
    book: list[str] = []
    leaf = ChildSpec("leaf", lambda: Player(book))
    never = RestartPolicy(max_restarts=0)
    troupe = ChildSpec("troupe", lambda: Supervisor([leaf], policy=never))
    spawn(Supervisor([troupe]), "root", system)
    leaf.address.tell(CRASH)
    eventually(lambda: clock.next_due() is not None)
    clock.advance(1)
    eventually(lambda: book == ["+leaf", "-leaf", "+leaf"])
    assert leaf.address.ask("urn", 5)


@pytest.mark.parametrize(
    ("restart", "message", "comes_back"),
    [
        ("permanent", QUIT, True),
        ("permanent", CRASH, True),
        ("transient", QUIT, False),
        ("transient", CRASH, True),
        ("temporary", QUIT, False),
        ("temporary", CRASH, False),
    ],
)
def test_restart_kinds(company: Company, restart: str, message: str, comes_back: bool) -> None:
    company.open(kinds={"b": restart})
    company.at("b").tell(message)
    company.at("b").join(5)
    company.settle()
    company.clock.advance(60)
    company.settle()
    assert company.book == (["-b", "+b"] if comes_back else ["-b"])
    assert company.at("b").alive == comes_back


def test_a_temporary_sibling_is_not_brought_back_with_the_group(company: Company) -> None:
    company.open("one_for_all", kinds={"c": "temporary"})
    company.crash("a")
    company.restart("a", "b")
    assert company.book == ["-a", "-c", "-b", "+a", "+b"]
    assert not company.at("c").alive


def test_a_crash_earlier_in_the_order_takes_over_a_pending_restart(company: Company) -> None:
    company.open("rest_for_one")
    company.crash("b")
    company.clock.advance(0.5)
    company.at("a").tell(CRASH)
    company.at("a").join(5)
    company.settle()
    company.clock.advance(0.5)  # when b alone would have been due
    company.settle()
    assert company.book == ["-b", "-c", "-a"]
    company.clock.advance(0.5)
    company.eventually(lambda: company.book[3:] == ["+a", "+b", "+c"])


def test_a_restart_that_was_due_while_a_larger_group_went_down_is_dropped(company: Company) -> None:
    company.open("rest_for_one")
    company.crash("b")
    entered, release = threading.Event(), threading.Event()

    class Slow(Player):
        def started(self) -> None:
            entered.set()
            release.wait(10)

    adding = company.address.ask_future(AddChild(ChildSpec("d", lambda: Slow(company.book))))
    entered.wait(5)
    company.at("a").tell(CRASH)
    company.at("a").join(5)
    company.clock.advance(1.0)  # now b is due, behind the notice of a's end
    release.set()
    adding.wait(5)
    company.settle()
    assert company.book == ["-b", "-c", "-a", "-d"]
    company.clock.advance(1.0)
    company.eventually(lambda: company.book[4:] == ["+a", "+b", "+c"])
    company.settle()
    assert all(company.at(name).alive for name in "abc")


def test_a_failing_first_start_is_seen_by_the_starter_and_takes_down_what_was_up(
    system: ActorSystem, incidents: list[ActorIncident]
) -> None:
    book: list[str] = []
    good = ChildSpec("good", lambda: Player(book))
    bad = ChildSpec("bad", lambda: Player(book, [True]))
    with pytest.raises(StartFailed, match="bad could not start: OSError: no stage"):
        spawn(Supervisor([good, bad]), "company", system)
    assert book == ["+good", "-good"]
    assert not good.address.alive
    with pytest.raises(Stopped):
        good.address.ask("urn", 5)
    assert [each.actor for each in incidents if each.action == "crashed"] == ["bad", "company"]


def test_a_factory_that_fails_is_a_failing_start(system: ActorSystem) -> None:
    def make() -> Actor:
        raise KeyError("setting")

    with pytest.raises(StartFailed, match="bad could not be made: KeyError"):
        spawn(Supervisor([ChildSpec("bad", make)]), "company", system)


def test_a_start_that_takes_too_long_is_a_failing_start(system: ActorSystem) -> None:
    release = threading.Event()

    class Slow(Player):
        def started(self) -> None:
            release.wait(10)

    book: list[str] = []
    slow = ChildSpec("slow", lambda: Slow(book), start_timeout=0.05)
    with pytest.raises(StartFailed, match=r"slow was not up after 0\.05 s"):
        spawn(Supervisor([slow]), "company", system)
    with pytest.raises(Stopped):
        slow.address.ask("urn", 5)
    release.set()
    assert slow.address.join(5) is not None, "it must stop by itself when its start returns at last"


def test_a_failing_restart_is_the_next_crash(
    system: ActorSystem, clock: ManualClock, eventually: Eventually
) -> None:
    book: list[str] = []
    starts = [False, True, True, False]
    flaky = ChildSpec("flaky", lambda: Player(book, starts))
    policy = RestartPolicy(backoff_base_s=1.0, jitter=0.0)
    spawn(Supervisor([flaky], policy=policy), "company", system)
    flaky.address.tell(CRASH)
    for remaining in (2, 1, 0):
        eventually(lambda: clock.next_due() is not None)
        clock.advance(10)
        eventually(lambda n=remaining: len(starts) == n)
    eventually(lambda: book == ["+flaky", "-flaky", "+flaky"])


def test_children_come_and_go_at_run_time(company: Company) -> None:
    company.open()
    spec = ChildSpec("d", lambda: Player(company.book))
    assert company.address.ask(AddChild(spec), 5) is spec.address
    assert spec.address.ask("urn", 5)
    with pytest.raises(Rejected, match="has a child d already"):
        company.address.ask(AddChild(spec), 5)
    company.address.ask(StopChild("d"), 5)
    assert not spec.address.alive
    company.address.ask(StopChild("d"), 5)
    company.address.ask(AddChild(spec), 5)
    assert company.book == ["+d", "-d", "+d"]


def test_a_child_that_cannot_be_added_leaves_the_supervisor_well(company: Company) -> None:
    company.open()
    bad = ChildSpec("bad", lambda: Player(company.book, [True]))
    with pytest.raises(StartFailed) as failure:
        company.address.ask(AddChild(bad), 5)
    assert isinstance(failure.value.__cause__, OSError)
    assert failure.value.cause.code == "start_failed"
    company.settle()
    company.address.ask(AddChild(ChildSpec("bad", lambda: Player(company.book))), 5)


def test_a_stopped_child_is_not_restarted_even_if_its_restart_was_pending(company: Company) -> None:
    company.open()
    company.crash("b")
    company.address.ask(StopChild("b"), 5)
    company.clock.advance(60)
    company.settle()
    assert company.book == ["-b"]


def test_a_child_that_does_not_stop_in_time_is_abandoned_and_said_so(
    system: ActorSystem, clock: ManualClock, incidents: list[ActorIncident]
) -> None:
    entered, release = threading.Event(), threading.Event()

    class Deaf(Player):
        def receive(self, message: Any) -> Any:
            entered.set()
            release.wait(10)

    book: list[str] = []
    deaf = ChildSpec("deaf", lambda: Deaf(book), shutdown=0.05)
    company = spawn(Supervisor([deaf]), "company", system)
    deaf.address.tell("work")
    entered.wait(5)
    waiting = deaf.address.ask_future("more work")
    company.ask(StopChild("deaf"), 5)
    with pytest.raises(Stopped):
        waiting.get(timeout=5)
    assert [(each.actor, each.action) for each in incidents] == [("deaf", "abandoned")]
    abandoned = deaf.address.incarnation
    company.ask(AddChild(deaf), 5)
    current = deaf.address.incarnation
    release.set()
    assert abandoned.ended.wait(5)
    for _ in range(2):
        with pytest.raises(Rejected):
            company.ask("anything", 5)
        clock.advance(60)
    assert deaf.address.incarnation is current, "the old incarnation's late end is not the new one's"
    assert len(incidents) == 1


class Watcher(Actor):
    def __init__(self) -> None:
        super().__init__()
        self.notices: list[Terminated] = []

    def receive(self, message: Any) -> Any:
        match message:
            case Terminated():
                self.notices.append(message)
            case Address():
                self.watch(message)
                self.watch(message)
            case _:
                pass


def test_watch_fires_once_with_incarnation_and_cause_and_at_once_for_the_dead(system: ActorSystem) -> None:
    watcher, player = Watcher(), Player([])
    watching = spawn(watcher, "watcher", system)
    target = spawn(player, "player", system)
    watching.ask(target, 5)
    target.tell(CRASH)
    target.join(5)
    watching.ask("flush", 5)
    assert [(each.actor, each.urn) for each in watcher.notices] == [("player", player.actor_urn)]
    assert isinstance(watcher.notices[0].cause, ValueError)
    watching.tell(Address("nobody"))
    watching.ask("flush", 5)
    watching.ask("flush", 5)
    assert watcher.notices[-1].actor == "nobody"
    assert isinstance(watcher.notices[-1].cause, Stopped)


def test_an_end_in_the_middle_of_watch_is_not_missed() -> None:
    class EndsWhenLookedAt(Deferred[Terminated]):
        @property
        def done(self) -> bool:
            done = super().done
            if not ending.is_alive() and not done:
                ending.start()
                ending.join(0.05)
            return done

    watcher, player = (Mailbox(name, 0, lambda count, first: None) for name in ("watcher", "player"))
    life = Incarnation("urn", player)
    ending = threading.Thread(target=life.end, args=(None,))
    life.ended = EndsWhenLookedAt()
    life.watch(watcher)
    ending.join(5)
    assert not watcher.empty()
    assert watcher.get().message == Terminated("player", "urn", None)
    assert watcher.empty()


def test_an_observer_that_meets_a_dead_actor_does_not_call_itself_for_ever(clock: ManualClock) -> None:
    calls: list[ActorIncident] = []

    def observe(incident: ActorIncident) -> None:
        calls.append(incident)
        dead.tell(incident)

    player = Player([])
    dead = spawn(player, "journal", ActorSystem(clock=clock, observer=observe))
    player.stop()
    dead.join(5)
    dead.tell("lost")
    assert [each.action for each in calls] == ["dead_letters"]


def test_an_observer_that_fails_harms_nobody(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    def observe(incident: ActorIncident) -> None:
        raise RuntimeError("observer")

    player = Player([])
    address = spawn(player, "player", ActorSystem(clock=clock, observer=observe))
    address.tell(CRASH)
    end = address.join(5)
    assert end is not None
    assert isinstance(end.cause, ValueError)
    assert "RuntimeError: observer" in caplog.text


@pytest.mark.slow
def test_hundreds_of_crashes_on_the_real_clock_are_all_recovered() -> None:
    """Callers that repeat what failed with Stopped get every answer, and restarts take milliseconds."""
    restarted: list[float] = []
    book: list[str] = []

    def observe(incident: ActorIncident) -> None:
        if incident.action == "restarted":
            restarted.append(time.monotonic())

    policy = RestartPolicy(max_restarts=10**6, backoff_base_s=0.001, backoff_cap_s=0.002)
    player = ChildSpec("player", lambda: Player(book))
    root = Supervisor([player], policy=policy)
    address = spawn(root, "root", ActorSystem(observer=observe))
    answered = 0
    for number in range(900):
        message = CRASH if number % 3 == 0 else "urn"
        while True:
            try:
                player.address.ask(message, 10)
            except Stopped:
                time.sleep(0.0005)
                continue
            except ValueError:
                pass
            answered += 1
            break
    assert answered == 900
    root.stop()
    assert address.join(10) is not None
    assert len(restarted) >= 299
    assert book.count("+player") == book.count("-player")
