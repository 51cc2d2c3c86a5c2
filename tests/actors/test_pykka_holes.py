"""The holes of plain Pykka, each shown in Pykka itself and shown closed in the layer.

Where a ``test_pykka_...`` fails after an upgrade, Pykka has closed the hole and the layer can do less.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pykka
import pytest
from pykka._envelope import Envelope

from actors.actor import Actor, spawn
from actors.address import Address
from actors.clock import ManualClock
from actors.deferred import Deferred, awaitable
from actors.refusal import MailboxFull, Rejected, StartFailed, Stopped
from actors.system import ActorIncident, ActorSystem
from events.values import Cause

Eventually = Callable[[Callable[[], object]], None]


class Plain(pykka.ThreadingActor):
    use_daemon_thread = True

    def __init__(self, act: Callable[[Any], Any] = lambda message: message) -> None:
        super().__init__()
        self.act = act
        self.hooks: list[str] = []

    def on_receive(self, message: Any) -> Any:
        return self.act(message)

    def on_stop(self) -> None:
        self.hooks.append("on_stop")

    def on_failure(self, *_: Any) -> None:
        self.hooks.append("on_failure")


class Layered(Actor):
    MAILBOX_BOUND = 100

    def __init__(self, act: Callable[[Any], Any] = lambda message: message) -> None:
        super().__init__()
        self.act = act
        self.hooks: list[str] = []

    def receive(self, message: Any) -> Any:
        return self.act(message)

    def stopping(self) -> None:
        self.hooks.append("stopping")


class Gate:
    """An actor's behaviour that holds it inside its first message until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.handled: list[Any] = []

    def __call__(self, message: Any) -> Any:
        self.entered.set()
        self.opened.wait(10)
        self.handled.append(message)
        if message == "crash":
            raise ValueError("crash")
        return message


def crash(message: Any) -> None:
    raise ValueError(message)


def leave(message: Any) -> None:
    raise SystemExit


# A failing start


def test_pykka_tells_no_one_of_a_failing_start(eventually: Eventually) -> None:
    class Failing(Plain):
        def on_start(self) -> None:
            raise OSError("no stage")

    ref = Failing.start()
    actor = ref._actor_weakref()
    assert actor is not None
    eventually(lambda: not ref.is_alive())
    assert actor.hooks == []


def test_layer_raises_a_failing_start_at_the_starter(
    system: ActorSystem, incidents: list[ActorIncident]
) -> None:
    class Failing(Layered):
        def started(self) -> None:
            raise OSError("no stage")

    with pytest.raises(StartFailed, match="failing could not start: OSError: no stage") as failure:
        spawn(Failing(), "failing", system)
    assert isinstance(failure.value.__cause__, OSError)
    assert [each.action for each in incidents] == ["crashed"]


# An exception under ask


def test_pykka_lives_on_after_an_exception_under_ask() -> None:
    ref = Plain.start(crash)
    with pytest.raises(ValueError, match="half-way"):
        ref.ask("half-way")
    assert ref.is_alive()
    ref.stop()


def test_layer_ends_an_actor_whose_state_is_in_doubt_and_keeps_one_that_refused(
    system: ActorSystem, incidents: list[ActorIncident]
) -> None:
    def act(message: Any) -> Any:
        if message == "refuse":
            raise Rejected(Cause(code="no", message="not today"))
        return crash(message)

    actor = Layered(act)
    address = spawn(actor, "actor", system)
    with pytest.raises(Rejected, match="not today"):
        address.ask("refuse", 5)
    address.tell("refuse")
    with pytest.raises(ValueError, match="half-way"):
        address.ask("half-way", 5)
    assert address.join(5) is not None
    assert actor.hooks == ["stopping"]
    assert [each.action for each in incidents] == ["rejected", "crashed"]
    assert incidents[0].error.startswith("Rejected: not today")


# Messages behind a crash


def test_pykka_drops_tells_behind_a_crash_without_a_word(
    eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    ref = Plain.start(gate)
    ref.tell("crash")
    gate.entered.wait(5)
    ref.tell("lost letter")
    caplog.set_level(logging.DEBUG)
    gate.opened.set()
    eventually(lambda: ref.actor_inbox.empty())
    assert gate.handled == ["crash"]
    assert "lost letter" not in caplog.text


def test_layer_counts_tells_and_answers_asks_behind_a_crash(
    system: ActorSystem, incidents: list[ActorIncident]
) -> None:
    gate = Gate()
    address = spawn(Layered(gate), "actor", system)
    address.tell("crash")
    gate.entered.wait(5)
    address.tell("lost letter")
    address.tell("lost letter")
    waiting = address.ask_future("question")
    gate.opened.set()
    with pytest.raises(Stopped):
        waiting.get(timeout=5)
    address.join(5)
    lost = [each for each in incidents if each.action == "dead_letters"]
    assert [(each.dead_letters, each.error) for each in lost] == [(2, "str")]


# Asks racing a stop


def test_pykka_never_answers_an_ask_that_is_put_after_the_teardown() -> None:
    """The two halves of ``ActorRef.ask``: look whether it lives, then put. A stop fits between them."""
    ref = Plain.start()
    assert ref.is_alive()
    ref.stop()
    answer = pykka.ThreadingFuture[Any]()
    ref.actor_inbox.put(Envelope("late", reply_to=answer))
    with pytest.raises(pykka.Timeout):
        answer.get(timeout=0.2)


class Roomy(Layered):
    MAILBOX_BOUND = 10**6


def _race_asks_with_stops(system: ActorSystem, rounds: int) -> tuple[int, int]:
    """Two threads ask while the actor stops. Returns how many asks were answered and how many bounced."""
    asked: list[Deferred[Any]] = []

    def ask_on(address: Address) -> None:
        for _ in range(100):
            answer = address.ask_future(1)
            asked.append(answer)
            if isinstance(answer.error, Stopped):
                return

    def serve(inbox: SimpleQueue[Address | None], done: SimpleQueue[None]) -> None:
        while (address := inbox.get()) is not None:
            ask_on(address)
            done.put(None)

    done: SimpleQueue[None] = SimpleQueue()
    inboxes: list[SimpleQueue[Address | None]] = [SimpleQueue() for _ in range(2)]
    for inbox in inboxes:
        threading.Thread(target=serve, args=(inbox, done), daemon=True).start()
    for _ in range(rounds):
        actor = Roomy()
        address = spawn(actor, "actor", system)
        before = len(asked)
        for inbox in inboxes:
            inbox.put(address)
        while len(asked) == before:
            time.sleep(0)
        actor.stop()
        for _ in inboxes:
            done.get(timeout=30)
    for inbox in inboxes:
        inbox.put(None)
    assert all(answer.wait(10) for answer in asked), "an ask was never answered"
    bounced = sum(isinstance(answer.error, Stopped) for answer in asked)
    return len(asked) - bounced, bounced


def test_layer_answers_every_ask_that_races_a_stop(system: ActorSystem, switching: None) -> None:
    answered, bounced = _race_asks_with_stops(system, 1_000)
    assert answered > 1_000
    assert bounced > 1_000


@pytest.mark.slow
def test_layer_answers_every_ask_that_races_a_stop_tens_of_thousands_of_times(
    system: ActorSystem, switching: None
) -> None:
    answered, bounced = _race_asks_with_stops(system, 30_000)
    assert answered > 30_000
    assert bounced > 30_000


def test_pykkas_own_reference_works_on_a_layered_actor(system: ActorSystem) -> None:
    actor = Layered()
    spawn(actor, "actor", system)
    assert actor.actor_ref.ask("hello", timeout=5) == "hello"
    assert actor.actor_ref.stop(timeout=5)
    with pytest.raises(pykka.ActorDeadError):
        actor.actor_ref.ask("hello", timeout=5)


# Answers that come later


def test_pykka_nests_a_returned_future() -> None:
    later = pykka.ThreadingFuture[int]()
    ref = Plain.start(lambda message: later)
    assert isinstance(ref.ask("question"), pykka.Future)
    ref.stop()


def test_layer_answers_when_the_returned_deferred_settles(system: ActorSystem) -> None:
    later = Deferred[int]()
    address = spawn(Layered(lambda message: later if message == "later" else message), "actor", system)
    answer = address.ask_future("later")
    assert address.ask("meanwhile", 5) == "meanwhile"
    assert not answer.done
    later.resolve(42)
    assert answer.get(timeout=5) == 42


def test_layer_passes_on_another_actors_answer_and_its_failure_harms_only_the_other(
    system: ActorSystem,
) -> None:
    behind = spawn(Layered(lambda message: crash(message) if message == "bad" else message), "behind", system)
    front = spawn(Layered(behind.ask_future), "front", system)
    assert front.ask("good", 5) == "good"
    with pytest.raises(ValueError, match="bad"):
        front.ask("bad", 5)
    behind.join(5)
    with pytest.raises(Stopped, match="behind"):
        front.ask("good", 5)
    assert front.alive


def test_layer_fails_the_answers_that_an_actor_still_owes_at_its_end(system: ActorSystem) -> None:
    actor = Layered(lambda message: Deferred[Any]() if message == "question" else message)
    address = spawn(actor, "actor", system)
    answer = address.ask_future("question")
    address.ask("flush", 5)
    actor.stop()
    with pytest.raises(Stopped, match="before it could answer"):
        answer.get(timeout=5)


def test_layer_reports_a_late_failure_that_nobody_waits_for(
    system: ActorSystem, incidents: list[ActorIncident]
) -> None:
    later = Deferred[Any]()
    address = spawn(Layered(lambda message: later if message == "later" else None), "actor", system)
    address.tell("later")
    address.ask("flush", 5)
    later.fail(OSError("disk"))
    assert [(each.action, each.error) for each in incidents] == [("rejected", "OSError: disk")]


# asyncio


def ticks_during(answer: Callable[[], Any]) -> int:
    async def tick(count: list[int]) -> None:
        while True:
            count.append(1)
            await asyncio.sleep(0.01)

    async def client() -> int:
        count: list[int] = []
        ticking = asyncio.create_task(tick(count))
        await answer()
        ticking.cancel()
        return len(count)

    return asyncio.run(client())


def test_pykka_blocks_the_loop_in_await() -> None:
    ref = Plain.start(lambda message: time.sleep(0.3))
    assert ticks_during(lambda: ref.ask("slow", block=False)) <= 2
    ref.stop()


def test_layer_leaves_the_loop_free_in_await(system: ActorSystem) -> None:
    address = spawn(Layered(lambda message: time.sleep(0.3)), "actor", system)
    assert ticks_during(lambda: awaitable(address.ask_future("slow"), asyncio.get_running_loop())) > 2


# Leaving


def test_pykka_stops_every_actor_when_one_leaves(eventually: Eventually) -> None:
    bystander, leaver = Plain.start(), Plain.start(leave)
    leaver.tell("go")
    eventually(lambda: not bystander.is_alive())


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_layer_ends_only_the_actor_that_leaves(system: ActorSystem, kind: type[BaseException]) -> None:
    def act(message: Any) -> Any:
        raise kind

    bystander, leaver = spawn(Layered(), "bystander", system), spawn(Layered(act), "leaver", system)
    with pytest.raises(Stopped, match=f"leaver crashed with {kind.__name__}"):
        leaver.ask("go", 5)
    end = leaver.join(5)
    assert end is not None
    assert isinstance(end.cause, kind)
    assert bystander.ask("here", 5) == "here"


# Bounds, order and the end


def test_pykka_takes_any_number_of_messages() -> None:
    gate = Gate()
    ref = Plain.start(gate)
    for number in range(200_000):
        ref.tell(number)
    gate.opened.set()
    ref.stop(block=False)


def test_layer_refuses_beyond_the_bound_and_recovers(system: ActorSystem) -> None:
    gate = Gate()
    actor = Layered(gate)
    address = spawn(actor, "actor", system)
    address.tell("first")
    gate.entered.wait(5)
    for number in range(Layered.MAILBOX_BOUND):
        address.tell(number)
    with pytest.raises(MailboxFull, match="actor has its mailbox full"):
        address.tell("one too many")
    with pytest.raises(MailboxFull):
        address.ask("one too many", 5)
    gate.opened.set()
    while len(actor.mailbox):
        time.sleep(0.001)
    assert address.ask("again", 5) == "again"
    assert address.incarnation.mailbox.high_water == Layered.MAILBOX_BOUND


def test_pykka_works_off_the_inbox_before_it_stops(eventually: Eventually) -> None:
    gate = Gate()
    ref = Plain.start(gate)
    ref.tell(1)
    ref.tell(2)
    ref.stop(block=False)
    gate.opened.set()
    eventually(lambda: not ref.is_alive())
    assert gate.handled == [1, 2]


def test_layer_stops_after_the_message_in_hand(system: ActorSystem) -> None:
    gate = Gate()
    actor = Layered(gate)
    address = spawn(actor, "actor", system)
    address.tell(1)
    gate.entered.wait(5)
    address.tell(2)
    actor.stop()
    gate.opened.set()
    address.join(5)
    assert gate.handled == [1]


def test_pykka_is_dead_while_it_still_cleans_up() -> None:
    cleaning, go_on = threading.Event(), threading.Event()

    class Cleaning(Plain):
        def on_stop(self) -> None:
            cleaning.set()
            go_on.wait(10)

    ref = Cleaning.start()
    ref.stop(block=False)
    cleaning.wait(5)
    assert not ref.is_alive()
    go_on.set()


def test_layer_is_alive_until_its_clean_up_is_done_and_takes_no_messages_meanwhile(
    system: ActorSystem,
) -> None:
    cleaning, go_on = threading.Event(), threading.Event()

    class Cleaning(Layered):
        def stopping(self) -> None:
            cleaning.set()
            go_on.wait(10)

    actor = Cleaning()
    address = spawn(actor, "actor", system)
    actor.stop()
    cleaning.wait(5)
    assert address.alive
    assert address.join(0.01) is None
    with pytest.raises(Stopped):
        address.ask("question", 5)
    go_on.set()
    assert address.join(5) is not None
    assert not address.alive


def test_layer_names_an_error_in_the_clean_up_as_the_cause(system: ActorSystem) -> None:
    class Cleaning(Layered):
        def stopping(self) -> None:
            raise OSError("disk")

    actor = Cleaning()
    address = spawn(actor, "actor", system)
    actor.stop()
    end = address.join(5)
    assert end is not None
    assert isinstance(end.cause, OSError)


# Time


def test_layer_has_timers_that_pass_the_bound_and_die_with_the_incarnation(
    system: ActorSystem, clock: ManualClock, incidents: list[ActorIncident]
) -> None:
    gate = Gate()
    actor = Layered(gate)
    address = spawn(actor, "actor", system)
    address.tell("first")
    gate.entered.wait(5)
    for number in range(Layered.MAILBOX_BOUND):
        address.tell(number)
    actor.after(5, "due")
    cancelled = actor.after(5, "cancelled")
    actor.after(500, "never")
    cancelled.cancel()
    clock.advance(5)
    gate.opened.set()
    while len(gate.handled) < 2:
        time.sleep(0.001)
    assert gate.handled[:2] == ["first", "due"]
    actor.stop()
    address.join(5)
    clock.advance(1000)
    assert "never" not in gate.handled
    assert all(each.error == "int" for each in incidents), "a dead timer is no dead letter"


def test_timers_of_a_dead_incarnation_hold_nothing(system: ActorSystem) -> None:
    class Message:
        pass

    message = Message()
    kept = weakref.ref(message)
    actor = Layered()
    address = spawn(actor, "actor", system)
    actor.after(500, message)
    del message
    assert kept() is not None
    actor.stop()
    address.join(5)
    assert kept() is None


def test_layer_asks_never_wait_for_ever(system: ActorSystem) -> None:
    gate = Gate()
    address = spawn(Layered(gate), "actor", system)
    with pytest.raises(TimeoutError, match=r"actor did not answer str within 0\.05 s"):
        address.ask("question", 0.05)
    gate.opened.set()
