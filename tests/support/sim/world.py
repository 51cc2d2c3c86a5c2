"""Virtual time: a queue of what is to happen, and the one source of chance of a run."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any

BEGIN = 1_780_000_000.0
"""Unix seconds at which every run begins."""


class World:
    """Call `run`; everything else happens through `after`."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self.happened = 0

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action(*arguments)`` in ``delay`` seconds."""
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action, arguments))

    def between(self, low: float, high: float) -> float:
        """A number drawn evenly."""
        return low + (high - low) * self.random.random()

    def run(self, until: float) -> None:
        """Let happen what is due before ``until``."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, action, arguments = heapq.heappop(queue)
            self.happened += 1
            action(*arguments)
        self.now = until
