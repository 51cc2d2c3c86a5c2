"""An answer that comes later: what ``ask_future`` returns, and what ``receive`` may return."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar

import pykka

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Deferred(pykka.Future[T]):
    """A value or an exception, set once by any thread, awaited by any thread.

    The first of `resolve` and `fail` wins; the later ones return False and change nothing. An actor that
    returns a Deferred from ``receive`` answers its caller when the Deferred settles.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Self], object]] = []
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True once there is a value or an exception."""
        return self._done

    @property
    def error(self) -> BaseException | None:
        """The exception, or None where there is a value or nothing yet."""
        return self._error

    def resolve(self, value: T | None = None) -> bool:
        """Set the value. Returns whether this call settled it."""
        return self._settle(value, None)

    def fail(self, error: BaseException) -> bool:
        """Set the exception. Returns whether this call settled it."""
        return self._settle(None, error)

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call ``callback(self)`` once settled, on the thread that settles it, or now if it is settled.

        The callback must not block. What it raises is logged and touches nobody else.
        """
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until settled or until ``timeout`` seconds have passed. Returns whether it is settled."""
        if self._done:
            return True
        settled = threading.Lock()
        settled.acquire()
        self.add_done_callback(lambda _: settled.release())
        return settled.acquire(timeout=-1 if timeout is None else max(0.0, timeout))

    def get(self, *, timeout: float | None = None) -> T:
        """The value, waited for. Raises the exception that was set, or TimeoutError."""
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self.wait(timeout):
            raise TimeoutError(f"no answer within {timeout} s")
        if self._error is not None:
            raise self._error
        return self._value

    def set(self, value: T | None = None) -> None:
        """Pykka's name for `resolve`."""
        self.resolve(value)

    def set_exception(self, exc_info: Any = None) -> None:
        """Pykka's name for `fail`; takes the triple of ``sys.exc_info()``, by default the current one."""
        error = (exc_info or sys.exc_info())[1]
        self.fail(error or RuntimeError("failed without an exception"))

    def _settle(self, value: Any, error: BaseException | None) -> bool:
        with self._lock:
            if self._done:
                return False
            self._value, self._error, self._done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)
        return True

    def _call(self, callback: Callable[[Self], object]) -> None:
        try:
            callback(self)
        except Exception:
            logger.exception("A callback on an answer failed")


def awaitable(deferred: Deferred[T], loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
    """The same answer as a future of ``loop``; call it on the loop's thread.

    No thread waits: the settling thread wakes the loop. Cancelling the asyncio future leaves the actor
    alone; its answer is then dropped.
    """
    future: asyncio.Future[T] = loop.create_future()

    def settle() -> None:
        if future.cancelled():
            return
        if deferred.error is not None:
            future.set_exception(deferred.error)
        else:
            future.set_result(deferred.get())

    def wake(_: Deferred[T]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle)

    deferred.add_done_callback(wake)
    return future
