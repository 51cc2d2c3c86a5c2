"""Time as actors know it: read, and waited for without a thread for each wait."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)


class Timer:
    """A call that is due at ``due``, in seconds of the clock's `Clock.monotonic`."""

    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self._callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Never make the call, unless it is being made now."""
        self._callback = None

    def fire(self) -> None:
        """Make the call, once, where not cancelled. What it raises is logged."""
        callback, self._callback = self._callback, None
        if callback is None:
            return
        try:
            callback()
        except Exception:
            logger.exception("A timer's callback failed")


class Clock(Protocol):
    """Where time comes from. Callbacks of `call_later` must be short: they share one thread."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, from any start."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in ``delay`` seconds."""
        ...


class _Agenda:
    """Timers in the order of their due times; equal times keep the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()

    def add(self, timer: Timer) -> None:
        heapq.heappush(self._heap, (timer.due, next(self._count), timer))

    def next_due(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Timer | None:
        return heapq.heappop(self._heap)[2] if self._heap and self._heap[0][0] <= now else None


class SystemClock:
    """The machine's clock. One daemon thread, started with the first timer, serves all timers."""

    def __init__(self) -> None:
        self._agenda = _Agenda()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` on the timer thread in ``delay`` seconds."""
        timer = Timer(time.monotonic() + delay, callback)
        with self._changed:
            first = self._agenda.next_due()
            self._agenda.add(timer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="timers", daemon=True)
                self._thread.start()
            elif first is None or timer.due < first:
                self._changed.notify()
        return timer

    def _run(self) -> None:
        while True:
            self._next().fire()

    def _next(self) -> Timer:
        with self._changed:
            while True:
                now = time.monotonic()
                timer = self._agenda.pop_due(now)
                if timer is not None:
                    return timer
                due = self._agenda.next_due()
                self._changed.wait(None if due is None else min(due - now, threading.TIMEOUT_MAX))


SYSTEM_CLOCK = SystemClock()
"""The one that everything takes unless given another."""


class ManualClock:
    """A clock that stands still until told to go on: for tests and simulations."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._agenda = _Agenda()
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds: the start's ``now`` and what was advanced since."""
        return self._now

    def monotonic(self) -> float:
        """The same as `now`."""
        return self._now

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` inside the `advance` that passes ``delay`` seconds from now."""
        with self._lock:
            timer = Timer(self._now + delay, callback)
            self._agenda.add(timer)
        return timer

    def next_due(self) -> float | None:
        """When the next timer is due, cancelled or not; None where none is set."""
        with self._lock:
            return self._agenda.next_due()

    def advance(self, seconds: float) -> None:
        """Let time pass; calls due on the way are made in order, each at its own time, on this thread."""
        end = self._now + seconds
        while (timer := self._pop(end)) is not None:
            timer.fire()
        self._now = end

    def _pop(self, end: float) -> Timer | None:
        with self._lock:
            timer = self._agenda.pop_due(end)
            if timer is not None:
                self._now = max(self._now, timer.due)
            return timer
