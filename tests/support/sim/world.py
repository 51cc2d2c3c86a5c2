"""Virtual time: a queue of what is to happen, actors that take turns, and one source of chance."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any

from actors.deferred import Deferred

BEGIN = 1_780_000_000.0
"""Unix seconds at which every run begins."""

MOMENT = 20_000
"""What can happen at one moment, unless something turns in a circle."""


class World:
    """Call `run`; everything else happens through `after`, or as an actor's turn.

    Of the actors that have something to do, chance says who is next; time goes on when none has. ``sloth``
    is the share of turns that come late, as those of a thread that a machine lets wait.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.sloth = 0.0
        self.happened = 0
        self._moment = 0
        self.broken: Exception | None = None
        """What `run` raises at once."""
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = count()
        self._turns: list[Callable[[], object]] = []

    def after(self, delay: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call ``action(*arguments)`` in ``delay`` seconds."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action, arguments))

    def turn(self, take: Callable[[], object]) -> None:
        """Let an actor have a turn, at this moment or a little later."""
        if self.sloth and self.random.random() < self.sloth:
            self.after(self.random.expovariate(20.0), self._turns.append, take)
        else:
            self._turns.append(take)

    def between(self, low: float, high: float) -> float:
        """A number drawn evenly."""
        return low + (high - low) * self.random.random()

    def run(self, until: float) -> None:
        """Let happen what is due before ``until``. Raises what is `broken`."""
        while self._happen(until):
            if self.broken is not None:
                raise self.broken
        self.now = until

    def run_for(self, answer: Deferred[Any], timeout: float) -> bool:
        """Let happen what does until ``answer`` is settled: one that waits for it is on the stack."""
        until = self.now + timeout
        while not answer.done and self.broken is None:
            if not self._happen(until):
                self.now = until
                break
        return answer.done

    def _happen(self, until: float) -> bool:
        turns, queue = self._turns, self._queue
        self.happened += 1
        if turns:
            chosen = int(self.random.random() * len(turns)) if len(turns) > 1 else 0
            take, turns[chosen] = turns[chosen], turns[-1]
            turns.pop()
            take()
        elif queue and queue[0][0] <= until:
            at, _, action, arguments = heapq.heappop(queue)
            if at > self.now:
                self.now, self._moment = at, self.happened
            elif self.happened - self._moment > MOMENT:
                raise RuntimeError(f"time stands still at {self.now:.3f} s: {action} {arguments}")
            action(*arguments)
        else:
            return False
        return True
