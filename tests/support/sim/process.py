"""A process in the simulation: it runs its actors one letter at a time, and has a clock of its own.

Real actors run under it as they are: what Pykka's threads do in production, `actors.dispatch` lets it do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pykka
from support.sim.world import BEGIN, World

from actors.actor import Actor
from actors.clock import Timer
from actors.deferred import Deferred
from actors.dispatch import Life
from actors.supervision import Supervisor

A = TypeVar("A", bound=Actor)


class Process:
    """Implements `actors.dispatch.Dispatcher` and `actors.clock.Clock`.

    ``skew`` is what its machine's clock is off by. When it is ended nothing of it happens any more.
    """

    def __init__(self, world: World, skew: float) -> None:
        self.world = world
        self.alive = True
        self._stack: list[int] = []
        self._skew = skew
        self._actors: list[Actor] = []

    def end(self) -> None:
        """As `kill -9` does. Not while an actor is `busy`."""
        self.alive = False
        for actor in self._actors:
            pykka.ActorRegistry.unregister(actor.actor_ref)

    @property
    def busy(self) -> bool:
        """Whether actors are on the stack: those that wait for another one, and the one that has its turn."""
        return bool(self._stack)

    def find(self, kind: type[A]) -> A | None:
        """The living actor of a class."""
        return next(iter(self.all(kind)), None)

    def all(self, kind: type[A]) -> list[A]:
        """The living actors of a class, the newest first."""
        actors = (each for each in reversed(self._actors) if isinstance(each, kind))
        return [each for each in actors if not each.mailbox.closed]

    # Dispatcher

    def run(self, life: Life) -> None:
        assert isinstance(life, Actor)
        self._actors.append(life)
        self.world.turn(partial(self._begin, life, len(self._actors)))

    def wait(self, answer: Deferred[Any], timeout: float) -> bool:
        return self.world.run_for(answer, timeout)

    def _begin(self, life: Life, number: int) -> None:
        if not self.alive:
            return
        take = partial(self._turn, life, number)
        self._stack.append(number)
        if life.begin():
            life.mailbox.rouse = partial(self.world.turn, take)
            self.world.turn(take)
        self._stack.pop()

    def _turn(self, life: Life, number: int) -> None:
        if self._stack and number < max(self._stack) and isinstance(life, Supervisor):
            # It could wait for one that is on the stack and can't go on before this turn is over.
            self.world.after(0.001, self._turn, life, number)
            return
        letter = life.mailbox.poll() if self.alive else None
        if letter is None:
            return
        self._stack.append(number)
        goes_on = life.handle(letter)
        self._stack.pop()
        if not goes_on:
            return
        if life.mailbox.empty():
            life.mailbox.poll()  # it sleeps now, until it is roused
        else:
            life.mailbox.rouse()

    # Clock

    def now(self) -> float:
        return round(BEGIN + self.world.now + self._skew, 6)

    def monotonic(self) -> float:
        return self.world.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(self.world.now + delay, callback)
        self.world.after(delay, self._fire, timer)
        return timer

    def _fire(self, timer: Timer) -> None:
        if self.alive:
            timer.fire()
