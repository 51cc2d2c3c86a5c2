"""Who runs actors: a thread for each, or, in a simulation, one thread for all of them.

What an actor does with a letter never depends on it; the order of what different actors do always does.
"""

from __future__ import annotations

from typing import Any, Protocol

from actors.deferred import Deferred
from actors.mailbox import Letter, Mailbox


class Life(Protocol):
    """An actor as the one who runs it sees it: `begin`, then `handle` each letter of `mailbox`, in order."""

    mailbox: Mailbox

    def begin(self) -> bool:
        """Start to live. False where that failed, and the life is over."""
        ...

    def handle(self, letter: Letter) -> bool:
        """Take one letter. False where it was the last one, and the life is over."""
        ...

    def run_in_thread(self) -> None:
        """Start a thread that does all of this."""
        ...


class Dispatcher(Protocol):
    """Runs actors, one letter at a time each, and knows what they wait for."""

    def run(self, life: Life) -> None:
        """Let an actor live from now on. Does not wait for its `Life.begin`."""
        ...

    def wait(self, answer: Deferred[Any], timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for an answer of an actor. Returns whether it is settled."""
        ...


class OwnThreads:
    """Each actor has a thread of its own."""

    def run(self, life: Life) -> None:
        """Start the thread."""
        life.run_in_thread()

    def wait(self, answer: Deferred[Any], timeout: float) -> bool:
        """Block the calling thread."""
        return answer.wait(timeout)


OWN_THREADS = OwnThreads()
"""What everything takes unless given another."""
