"""What all actors of a process share: who runs them, the clock, chance, the observer of what goes wrong."""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from actors.clock import SYSTEM_CLOCK, Clock
from actors.dispatch import OWN_THREADS, Dispatcher

logger = logging.getLogger(__name__)

Action = Literal["crashed", "restarted", "stopped", "escalated", "abandoned", "rejected", "dead_letters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorIncident:
    """Something that went wrong with an actor and what was done about it.

    ``crashed`` is said by the actor itself, at once. What its supervisor then did follows when it is done:
    ``restarted`` (a new incarnation is up), ``stopped`` (left down) or ``escalated`` (the supervisor gave up
    and crashes too). ``abandoned``: did not stop in time, its thread was left behind. ``rejected``: refused
    a tell. ``dead_letters``: that many tells reached an actor that was not there.
    """

    actor: str
    action: Action
    error: str = ""
    """The exception with its last frames; of dead letters, the type of the first message."""
    restarts: int = 0
    """Restarts of this actor so far."""
    dead_letters: int = 0


Observer = Callable[[ActorIncident], None]


def log_incident(incident: ActorIncident) -> None:
    """The observer that everything takes unless given another: a line in the log of the process."""
    logger.warning("%s", incident)


def describe(error: BaseException | None) -> str:
    """One line: the exception and where it came from, innermost frame first, three frames at most."""
    if error is None:
        return "stopped by itself"
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = [f"{os.path.basename(f.filename)}:{f.lineno} in {f.name}" for f in reversed(frames)]
    text = f"{type(error).__name__}: {error}"
    return f"{text} ({' < '.join(places)})" if places else text


@dataclass(frozen=True)
class ActorSystem:
    """Injected into every actor at its start.

    ``observer`` is called on the thread where the thing happened, so it must not block. A dead letter that
    the observer itself causes is logged, not reported, or a dead journal would make it call itself for ever.
    """

    clock: Clock = SYSTEM_CLOCK
    random: Random = field(default_factory=Random)
    observer: Observer = log_incident
    dispatcher: Dispatcher = OWN_THREADS
    _inside: threading.local = field(default_factory=threading.local, repr=False)

    def report(self, incident: ActorIncident) -> None:
        """Tell the observer. What it raises is logged."""
        if getattr(self._inside, "observer", False):
            log_incident(incident)
            return
        self._inside.observer = True
        try:
            self.observer(incident)
        except Exception:
            logger.exception("The observer failed on %s", incident)
        finally:
            self._inside.observer = False
