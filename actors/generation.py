"""A generation: the tasks of one request and what comes of them, joined from runners and from the log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from engines.wire import Admitted, Chunk
from events import catalogue as ev

TaskEnd = ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled
Item = Admitted | Chunk | TaskEnd


class Generation:
    """The tasks of one request and what comes of them: iterate over (index of the task, item).

    It ends when every task has its terminal event. Close it when nobody listens any more.
    """

    def __init__(self, request_id: str, cancel: Callable[[list[str], str], None]) -> None:
        """``cancel(task_ids, reason)`` asks for the end of tasks."""
        self.request_id = request_id
        self.task_ids: list[str] = []
        self._cancel = cancel
        self._open: dict[str, int] = {}
        self._items: deque[tuple[int, Item]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = ""

    def __aiter__(self) -> Generation:
        """The generation itself."""
        return self

    async def __anext__(self) -> tuple[int, Item]:
        """The next item; waits for it."""
        while not self._items:
            if self.over:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()

    @property
    def over(self) -> bool:
        """True once every task has its terminal event."""
        return bool(self.task_ids) and not self._open

    @property
    def waiting(self) -> int:
        """Items that have come and were not taken yet."""
        return len(self._items)

    def close(self, reason: str) -> None:
        """Cancel what is still open and take no more. Closing twice is closing once."""
        if self._closed:
            return
        self._closed = reason
        self._items.clear()
        if self._open:
            self._cancel(list(self._open), reason)

    # For the gateway

    def created(self, task: ev.TaskCreated) -> None:
        """A task of the request is in the log."""
        self._open[task.task_id] = task.index
        self.task_ids.append(task.task_id)
        if self._closed:
            self._cancel([task.task_id], self._closed)

    def index(self, task_id: str) -> int:
        """The index of an open task."""
        return self._open[task_id]

    def put(self, task_id: str, item: Item) -> None:
        """Something came of a task."""
        index = self._open.get(task_id)
        if index is None:
            return
        if isinstance(item, ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled):
            del self._open[task_id]
        if not self._closed:
            self._items.append((index, item))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
