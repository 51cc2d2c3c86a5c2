"""The actor: a Pykka thread with a mailbox that closes, refusals, late answers, timers and death watch.

It fills in Pykka's extension points: the loop, the inbox and the future. Pykka's own ``ref.ask`` and
``ref.stop`` still work; proxies do not.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import Any, ClassVar, cast

import pykka
from pykka.messages import _ActorStop as StopMessage  # pyright: ignore[reportPrivateUsage]

from actors.address import Address, Incarnation, no_answer
from actors.clock import Clock, Timer
from actors.deferred import Deferred
from actors.mailbox import Letter, Mailbox
from actors.refusal import Rejected, StartFailed, Stopped
from actors.system import ActorIncident, ActorSystem, describe
from events.values import Cause


class Actor(pykka.ThreadingActor):
    """Subclasses implement `receive`, and `started` and `stopping` where they have something to do there.

    ``system``, `address`, `name` and `clock` are there from `started` on, not yet in ``__init__``.
    """

    use_daemon_thread: ClassVar[bool] = True
    MAILBOX_BOUND: ClassVar[int] = 10_000

    system: ActorSystem
    address: Address

    def __init__(self) -> None:
        super().__init__()
        self.mailbox = Mailbox("", self.MAILBOX_BOUND, self._report_dead_letters)
        self.actor_inbox = cast(Any, self.mailbox)  # a Letter has what Pykka's Envelope has
        self._actor_ref = pykka.ActorRef(self)
        self._life = Incarnation(self.actor_urn, self.mailbox)
        self._up = Deferred[None]()
        self._timers: weakref.WeakSet[Timer] = weakref.WeakSet()
        self._owed: dict[Deferred[Any], None] = {}

    # What subclasses implement

    def receive(self, message: Any) -> Any:
        """Handle one message; what it returns answers an ask, a Deferred answers when it settles.

        Raise Rejected to refuse. Any other exception goes to the caller and ends this incarnation.
        """
        raise NotImplementedError(f"{type(self).__name__} handles no messages")

    def started(self) -> None:
        """Runs first, on the actor's thread; whoever starts the actor waits for it and sees its exception.

        Messages that arrive meanwhile wait; to ask the supervisor from here can only time out. What fails
        here must clean up here: `stopping` is not called.
        """

    def stopping(self) -> None:
        """Runs last, after a stop and after a crash alike. The mailbox is closed already."""

    # What subclasses use

    @property
    def name(self) -> str:
        """The name of the address."""
        return self.address.name

    @property
    def clock(self) -> Clock:
        """The system's clock."""
        return self.system.clock

    def after(self, delay: float, message: Any) -> Timer:
        """Tell this incarnation ``message`` in ``delay`` seconds, past the bound and what waits.

        The timer dies with the incarnation. Cancelling is not taking back: the message may wait already.
        """
        timer = self.clock.call_later(delay, partial(self.mailbox.put_system, message))
        self._timers.add(timer)
        return timer

    def watch(self, address: Address) -> None:
        """Receive one Terminated when the current incarnation at ``address`` ends, now where it has ended."""
        address.incarnation.watch(self.mailbox)

    def stop(self) -> None:
        """Ask this incarnation to end after the message in hand, before those that wait. Any thread."""
        self.mailbox.put_system(StopMessage())

    def ask(self, address: Address, message: Any, timeout: float) -> Any:
        """As `Address.ask`. This actor handles nothing else while it waits."""
        answer = address.ask_future(message)
        if not self.system.dispatcher.wait(answer, timeout):
            raise no_answer(address.name, message, timeout)
        return answer.get()

    # What those who start actors use

    def launch(self, address: Address, system: ActorSystem) -> None:
        """Bind to ``address`` and begin to live. Follow with `wait_started`."""
        self.address = address
        self.system = system
        self.mailbox.owner = address.name
        address.bind(self._life)
        pykka.ActorRegistry.register(self.actor_ref)
        self.system.dispatcher.run(self)

    def wait_started(self, timeout: float) -> None:
        """Wait until `started` has returned. Raises StartFailed, from its exception where it has one."""
        if not self.system.dispatcher.wait(self._up, timeout):
            self.mailbox.close()
            self.stop()
            message = f"{self.name} was not up after {timeout:g} s"
            raise StartFailed(Cause(code="start_failed", message=message))
        if self._up.error is not None:
            message = f"{self.name} could not start: {describe(self._up.error)}"
            raise StartFailed(Cause(code="start_failed", message=message)) from self._up.error

    def wait_stopped(self, timeout: float) -> bool:
        """Wait until the life is over. False where ``timeout`` seconds were not enough."""
        return self.system.dispatcher.wait(self._life.ended, timeout)

    # The life, for the dispatcher

    def run_in_thread(self) -> None:
        """Live in a thread of its own."""
        self._start_actor_loop()

    def begin(self) -> bool:
        """Run `started`. False where that failed, and the life is over."""
        try:
            self.started()
        except BaseException as error:
            self._end(error)
            self._up.fail(error)
            return False
        self._up.resolve(None)
        return True

    def handle(self, letter: Letter) -> bool:
        """Handle one message. False where it was a stop or made the actor crash: the life is over."""
        try:
            if isinstance(letter.message, StopMessage):
                self._finish(letter, None)
                return False
            reply = self.receive(letter.message)
            if isinstance(reply, Deferred):
                self._owe(letter, cast("Deferred[Any]", reply))
            elif letter.reply_to is not None:
                letter.reply_to.resolve(reply)
        except Rejected as refusal:
            self._refuse(letter, refusal)
        except BaseException as error:
            self._finish(letter, error)
            return False
        return True

    @staticmethod
    def _create_future() -> Deferred[Any]:
        return Deferred()

    def _actor_loop(self) -> None:
        threading.current_thread().name = self.name
        if self.begin():
            get, handle = self.mailbox.get, self.handle
            while handle(get()):
                pass

    def _finish(self, letter: Letter, cause: BaseException | None) -> None:
        """After a stop (no cause) or a crash: close the door, answer, clean up, tell all who wait."""
        self.mailbox.close()
        answer = letter.reply_to or Deferred[Any]()
        answer.resolve(None) if cause is None else answer.fail(_for_caller(self.name, cause))
        try:
            self.stopping()
        except BaseException as error:
            cause = cause or error
        self._end(cause)

    def _refuse(self, letter: Letter, refusal: Rejected) -> None:
        if letter.reply_to is not None:
            letter.reply_to.fail(refusal)
        else:
            self._report_late(refusal)

    def _owe(self, letter: Letter, answer: Deferred[Any]) -> None:
        caller = letter.reply_to or Deferred[Any]()
        self._owed[caller] = None

        def settle(_: Deferred[Any]) -> None:
            self._owed.pop(caller, None)
            if answer.error is None:
                caller.resolve(answer.get())
            elif letter.reply_to is not None:
                caller.fail(answer.error)
            else:
                self._report_late(answer.error)

        answer.add_done_callback(settle)

    def _end(self, cause: BaseException | None) -> None:
        self.mailbox.end()
        for timer in self._timers:
            timer.cancel()
        for caller in list(self._owed):
            caller.fail(Stopped(self.name, "stopped before it could answer"))
        pykka.ActorRegistry.unregister(self.actor_ref)
        if cause is not None:
            self.system.report(ActorIncident(actor=self.name, action="crashed", error=describe(cause)))
        self.actor_stopped.set()
        self._life.end(cause)

    def _report_late(self, error: BaseException) -> None:
        """Nobody waits for the answer to a tell, so the observer gets what would have been its exception."""
        self.system.report(ActorIncident(actor=self.name, action="rejected", error=describe(error)))

    def _report_dead_letters(self, count: int, first: Any) -> None:
        kind = type(first).__name__
        self.system.report(
            ActorIncident(actor=self.name, action="dead_letters", error=kind, dead_letters=count)
        )


def spawn(actor: Actor, name: str, system: ActorSystem | None = None, timeout: float = 60.0) -> Address:
    """Start an actor that no supervisor looks after, such as the root. Raises StartFailed.

    It is not restarted; `Address.join` waits for its end.
    """
    address = Address(name)
    actor.launch(address, system or ActorSystem())
    actor.wait_started(timeout)
    return address


def _for_caller(name: str, error: BaseException) -> BaseException:
    """What a caller gets of a crash: never a SystemExit and its like, which would end the caller as well."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    stopped = Stopped(name, f"crashed with {describe(error)}")
    stopped.__cause__ = error
    return stopped
