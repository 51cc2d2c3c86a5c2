"""An asyncio event loop on a process's virtual clock: the part of it that the gateway uses."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from support.sim.process import Process


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Callbacks are turns of the world, as those of actors are; what they leave uncaught breaks the run."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def time(self) -> float:
        return self._process.monotonic()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._process.alive

    def is_closed(self) -> bool:
        return not self._process.alive

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._process.alive:
            self._process.world.turn(lambda: self._run(handle))
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.time() + delay, callback, args, self, context)
        if self._process.alive:
            self._process.world.after(max(0.0, delay), self._run, handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """At once: nothing that is simulated may take time there."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.alive:
            error = context.get("exception")
            self._process.world.broken = error if isinstance(error, Exception) else RuntimeError(str(context))

    def _run(self, handle: asyncio.Handle) -> None:
        if not self._process.alive or handle.cancelled():
            return
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(outer)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it stays in the queue and is passed over
