"""What never enters the log: prompts on their way to a runner, tokens on their way to a client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from engines.contract import Prompt
from engines.wire import Admitted, Progress

TokenSink = Callable[[Admitted | Progress], None]


class PromptShelf:
    """Prompts of accepted requests until their runner takes them. Thread-safe; in memory only.

    Each request puts one prompt a task; the worker takes each once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prompts: dict[tuple[str, int], Prompt] = {}

    def put(self, request_id: str, prompts: Sequence[Prompt]) -> None:
        """Lay the prompts of a request ready, before its tasks are asked for."""
        with self._lock:
            for index, prompt in enumerate(prompts):
                self._prompts[request_id, index] = prompt

    def take(self, request_id: str, index: int) -> Prompt | None:
        """The prompt of one task, once; None where it is not there (any more)."""
        with self._lock:
            return self._prompts.pop((request_id, index), None)

    def __len__(self) -> int:
        return len(self._prompts)


class TokenHub:
    """Hands what runners say about tasks to whoever serves the clients, on the runner's reader thread."""

    def __init__(self) -> None:
        self._sink: TokenSink | None = None

    def attach(self, sink: TokenSink | None) -> None:
        """Set the one receiver; None detaches it."""
        self._sink = sink

    def publish(self, message: Admitted | Progress) -> None:
        """Pass a message on; dropped where nobody serves clients."""
        sink = self._sink
        if sink is not None:
            sink(message)
