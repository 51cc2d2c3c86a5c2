"""The bounded queue of what one link has yet to send."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from actors.net.wire import FRAME_BYTES, FrameKind, frame

MAX_MESSAGES = 2_000
MAX_BYTES = 64 * 1024 * 1024


class Outbox:
    """Filled by any thread, emptied frame by frame by the transport's thread.

    ``wake`` is called, on the filling thread, where the transport sleeps and there is something to send, and
    when the outbox overflows. An outbox that overflowed takes nothing more: the link has to be closed. One
    message always finds room, however large.
    """

    def __init__(
        self, wake: Callable[[], object], max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._wake = wake
        self._limits = (max_messages, max_bytes)
        self._lock = threading.Lock()
        self._records: deque[bytes] = deque()
        self._urgent: deque[bytes] = deque()
        self._bytes = 0
        self._cut = 0  # how many bytes of the first record are sent
        self._awake = False
        self._last: bytes | None = None
        self._closed = False
        self.overflowed = False

    def put(self, record: bytes) -> bool:
        """Queue ``record``. False where the outbox is closed or overflows with it."""
        with self._lock:
            if self._closed:
                return False
            if self._full(record):
                self._closed = self.overflowed = True
                rouse = True
            else:
                self._records.append(record)
                self._bytes += len(record)
                rouse, self._awake = not self._awake, True
        if rouse:
            self._wake()
        return not self.overflowed

    def put_first(self, ready: bytes) -> None:
        """Send the frame ``ready`` before any queued message: heart-beats and their like."""
        with self._lock:
            if self._closed:
                return
            self._urgent.append(ready)
            rouse, self._awake = not self._awake, True
        if rouse:
            self._wake()

    def put_last(self, ready: bytes) -> None:
        """Send the frame ``ready`` after everything that is queued, and take nothing more."""
        with self._lock:
            if self._closed:
                return
            self._closed, self._last = True, ready
            rouse, self._awake = not self._awake, True
        if rouse:
            self._wake()

    def next_frame(self) -> bytes | None:
        """The next frame to send, or None: then ``wake`` will say when there is one."""
        with self._lock:
            if self._urgent:
                return self._urgent.popleft()
            if not self._records:
                last, self._last = self._last, None
                self._awake = last is not None
                return last
            if len(self._records[0]) > FRAME_BYTES:
                return self._slice()
            return self._batch()

    def close(self) -> None:
        """Take nothing more and forget what is queued."""
        with self._lock:
            self._closed = True
            self._records.clear()
            self._last = None
            self._urgent.clear()
            self._bytes = self._cut = 0

    @property
    def empty(self) -> bool:
        """True where nothing waits."""
        return not self._records and not self._urgent and self._last is None

    def _full(self, record: bytes) -> bool:
        max_messages, max_bytes = self._limits
        return bool(self._records) and (
            len(self._records) >= max_messages or self._bytes + len(record) > max_bytes
        )

    def _slice(self) -> bytes:
        record = self._records[0]
        piece = record[self._cut : self._cut + FRAME_BYTES]
        self._cut += len(piece)
        if self._cut < len(record):
            return frame(FrameKind.PART, piece)
        self._records.popleft()
        self._bytes -= len(record)
        self._cut = 0
        return frame(FrameKind.LAST, piece)

    def _batch(self) -> bytes:
        batch = [bytes((FrameKind.RECORDS,))]
        size = 0
        while self._records and size + len(self._records[0]) <= FRAME_BYTES:
            batch.append(self._records.popleft())
            size += len(batch[-1])
        self._bytes -= size
        return b"".join(batch)
