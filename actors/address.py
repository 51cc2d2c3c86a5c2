"""Addresses: stable names of actors whose incarnations come and go.

Delivery is at most once. While an actor is being restarted nothing is kept for it: asks fail with Stopped,
tells become dead letters. A new incarnation rebuilds its state from the log, so what it missed and still
matters is there, or is reported again by whoever sees it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from actors.deferred import Deferred
from actors.mailbox import Letter, Mailbox
from actors.refusal import Stopped
from actors.system import ActorIncident, log_incident


@dataclass(frozen=True, slots=True)
class Terminated:
    """The notice of death of one incarnation. ``cause`` is None where it stopped in good order."""

    actor: str
    urn: str
    cause: BaseException | None


class Incarnation:
    """One life of an actor, with its mailbox and those who wait for its end."""

    def __init__(self, urn: str, mailbox: Mailbox) -> None:
        self.urn = urn
        self.mailbox = mailbox
        self.ended = Deferred[Terminated]()
        self._watchers: dict[Mailbox, None] = {}
        self._lock = threading.Lock()

    def watch(self, watcher: Mailbox) -> None:
        """Send ``watcher`` one Terminated in its system lane when this life ends, now if it has ended."""
        with self._lock:
            if watcher in self._watchers:
                return
            if not self.ended.done:
                self._watchers[watcher] = None
                return
        watcher.put_system(self.ended.get())

    def end(self, cause: BaseException | None) -> None:
        """The life is over: tell all who wait."""
        notice = Terminated(self.mailbox.owner, self.urn, cause)
        with self._lock:
            self.ended.resolve(notice)
            watchers, self._watchers = self._watchers, {}
        for watcher in watchers:
            watcher.put_system(notice)


class Address:
    """Where to send messages for the actor called ``name``, whichever incarnation is there now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._life = _unborn(name)
        self._mailbox = self._life.mailbox

    def __repr__(self) -> str:
        return f"<Address {self.name}>"

    @property
    def incarnation(self) -> Incarnation:
        """The current or last incarnation; before the first start, one that has ended."""
        return self._life

    @property
    def alive(self) -> bool:
        """True from the start of an incarnation until the end of its clean-up."""
        return not self._life.ended.done

    def tell(self, message: Any) -> None:
        """Send and forget. Raises MailboxFull; where no actor is there, the message is a dead letter."""
        self._mailbox.put(Letter(message))

    def tell_system(self, message: Any) -> None:
        """Tell past the bound and what waits: for news that must not be refused. Dropped where no one is."""
        self._mailbox.put_system(message)

    def ask(self, message: Any, timeout: float) -> Any:
        """Send and wait up to ``timeout`` seconds for the answer.

        Raises what the actor raised (Rejected: it is well; anything else: it crashed), MailboxFull,
        Stopped where no actor is there to answer, or TimeoutError.
        """
        answer = self.ask_future(message)
        if not answer.wait(timeout):
            raise no_answer(self.name, message, timeout)
        return answer.get()

    def ask_future(self, message: Any) -> Deferred[Any]:
        """Send, and get the answer as a Deferred that is certain to settle when the actor ends.

        Raises MailboxFull. An actor may return it from ``receive`` to pass the answer on to its caller.
        """
        answer = Deferred[Any]()
        self._mailbox.put(Letter(message, answer))
        return answer

    def join(self, timeout: float | None = None) -> Terminated | None:
        """Wait for the end of the current incarnation. None where ``timeout`` seconds were not enough."""
        ended = self._life.ended
        return ended.get() if ended.wait(timeout) else None

    def bind(self, life: Incarnation) -> None:
        """Point to a new incarnation. For the one who starts it."""
        self._life = life
        self._mailbox = life.mailbox


def no_answer(name: str, message: Any, timeout: float) -> TimeoutError:
    """The error of an ask that was not answered in time."""
    return TimeoutError(f"{name} did not answer {type(message).__name__} within {timeout:g} s")


def _unborn(name: str) -> Incarnation:
    def dead_letters(count: int, first: Any) -> None:
        log_incident(
            ActorIncident(actor=name, action="dead_letters", error=type(first).__name__, dead_letters=count)
        )

    mailbox = Mailbox(name, 0, dead_letters)
    mailbox.end()
    life = Incarnation("", mailbox)
    life.end(Stopped(name, "was never started"))
    return life
