"""The log for handlers: one connection on one thread, so that the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aiohttp import web

from events.errors import LogRewound
from events.reader import LogReader

T = TypeVar("T")


class LogAccess:
    """Runs readings of the log, one after the other. Close it in the end."""

    def __init__(self, open_reader: Callable[[], LogReader]) -> None:
        self._open = open_reader
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="api-log")
        self._reader: LogReader | None = None

    async def read(self, reading: Callable[[LogReader], T]) -> T:
        """The result of ``reading``, called with the reader on its thread. Raises what it raises.

        It is called again where the log was rewound while it read.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, reading)

    def close(self) -> None:
        """Finish what runs, then close the connection."""
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _read(self, reading: Callable[[LogReader], T]) -> T:
        if self._reader is None:
            self._reader = self._open()
        while True:
            try:
                return reading(self._reader)
            except LogRewound:  # a partition healed meanwhile: what was read is not kept
                continue

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()


LOG = web.AppKey("log", LogAccess)
