"""The mailbox: two lanes, a bound, and a door that closes.

Closing is what plain queues lack: a message that arrives after the last look at the queue would never be
answered. Here an arrival and the closing exclude each other, so that every ask is either handled or bounced.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from actors.deferred import Deferred
from actors.refusal import MailboxFull, Stopped

RETRY_AFTER_S = 1.0


class Letter:
    """A message on its way and the Deferred that its sender waits on, None for a tell."""

    __slots__ = ("message", "reply_to")

    def __init__(self, message: Any, reply_to: Deferred[Any] | None = None) -> None:
        self.message = message
        self.reply_to = reply_to


class Mailbox:
    """Many senders, one reader.

    The user lane holds at most ``bound`` letters. The system lane (stops, timers, notices of death)
    overtakes it and is never refused; what it holds when the actor ends is dropped, being about nobody else.
    """

    def __init__(self, owner: str, bound: int, dead_letters: Callable[[int, Any], None]) -> None:
        """``dead_letters(count, message)`` is told of tells that nobody will read, with the first of them."""
        self.owner = owner
        self.bound = bound
        self.high_water = 0
        """The most letters that ever waited in the user lane."""
        self.dead_letters = dead_letters
        self._user: deque[Letter] = deque()
        self._system: deque[Letter] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Lock()
        self._wake.acquire()
        self.rouse: Callable[[], object] = self._wake.release
        """Called where the reader sleeps and there is something to read; must not block."""
        self._reader_sleeps = False
        self._closed = False
        self._ended = False

    def __len__(self) -> int:
        return len(self._user)

    @property
    def closed(self) -> bool:
        """True once letters bounce."""
        return self._closed

    def put(self, letter: Letter) -> None:
        """Add to the user lane; bounce where the door is closed. Raises MailboxFull at the bound."""
        with self._lock:
            if not self._closed:
                waiting = len(self._user) + 1
                if waiting > self.bound:
                    raise MailboxFull(self.owner, RETRY_AFTER_S)
                if waiting > self.high_water:
                    self.high_water = waiting
                self._user.append(letter)
                if self._reader_sleeps:
                    self._wake_reader()
                return
        self._bounce([letter])

    def put_system(self, message: Any) -> None:
        """Add to the system lane, also behind the closed door; dropped where the reader is no more."""
        with self._lock:
            if self._ended:
                return
            self._system.append(Letter(message))
            if self._reader_sleeps:
                self._wake_reader()

    def get(self) -> Letter:
        """The next letter, waited for; the system lane first. For the one reader."""
        while True:
            if self._system:
                return self._system.popleft()
            try:
                return self._user.popleft()
            except IndexError:
                self._sleep()

    def poll(self) -> Letter | None:
        """The next letter, or None: then `rouse` will say when there is one. For the one reader."""
        with self._lock:
            lane = self._system or self._user
            if lane:
                return lane.popleft()
            self._reader_sleeps = True
            return None

    def empty(self) -> bool:
        """True where `get` would wait."""
        return not self._system and not self._user

    def close(self) -> None:
        """Bounce what waits in the user lane and whatever comes: asks get Stopped, tells are dead letters."""
        with self._lock:
            self._closed = True
            letters = list(self._user)
            self._user.clear()
        self._bounce(letters)

    def end(self) -> None:
        """Close, and keep nothing any more: there is no reader."""
        self.close()
        with self._lock:
            self._ended = True
            self._system.clear()

    def _sleep(self) -> None:
        with self._lock:
            if self._system or self._user:
                return
            self._reader_sleeps = True
        self._wake.acquire()

    def _wake_reader(self) -> None:
        self._reader_sleeps = False
        self.rouse()

    def _bounce(self, letters: list[Letter]) -> None:
        tells = [letter.message for letter in letters if letter.reply_to is None]
        for letter in letters:
            if letter.reply_to is not None:
                letter.reply_to.fail(Stopped(self.owner))
        if tells:
            self.dead_letters(len(tells), tells[0])
