"""What a runner's supervisor keeps beside its mailbox: the way out to the runner, and a watch on progress."""

from __future__ import annotations

import logging
import queue
import threading

from engines import wire
from engines.wire import Channel, ChannelClosed

logger = logging.getLogger("cuebook.runner")


class Outbox:
    """Sends on a thread of its own: a runner that takes nothing must not hold up what watches over it."""

    def __init__(self, channel: Channel, runner_id: str) -> None:
        self._channel = channel
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"{runner_id} writer", daemon=True).start()

    def put(self, frame: bytes) -> None:
        """Send a frame that `Channel.pack` made, after those before it. Never waits."""
        self._frames.put(frame)

    def close(self) -> None:
        """End the thread when everything is sent."""
        self._frames.put(None)

    def _run(self) -> None:
        try:
            while (frame := self._frames.get()) is not None:
                self._channel.send_frame(frame)
        except ChannelClosed as error:
            logger.debug("A runner is gone before it got everything: %s", error)  # its reader sees the end


class Watch:
    """What the deadlines need to know. Written by the reader thread and the actor, each field by one
    assignment; a check that sees an old value looks again a moment later."""

    def __init__(self) -> None:
        self.phase = ""
        self.limit = 0.0
        self.progress_at = 0.0
        self._unseen: set[str] = set()
        self._open: set[str] = set()
        self._prefilling = False
        self._moving = 0.0
        """Seconds that moving experts may take; 0 where none are on their way."""

    def begin(self, phase: str, limit: float, now: float) -> None:
        """A phase begins in which something must be heard every ``limit`` seconds."""
        self.progress_at = now
        self.limit = limit
        self.phase = phase

    def dispatched(self, task_id: str, now: float) -> None:
        """The runner was given a task."""
        if not self._open:
            self.progress_at = now
        self._unseen.add(task_id)
        self._open.add(task_id)

    def progressed(self, message: wire.Progress, now: float) -> None:
        """An engine step. Nothing else is progress: a runner's reader answers while its engine hangs."""
        self.progress_at = now
        self._prefilling = bool(message.prefilling)
        if self._unseen:
            self._unseen.difference_update(message.prefilling, message.decoding)

    def ended(self, task_id: str) -> None:
        """A task is over, as the runner says."""
        self._unseen.discard(task_id)
        self._open.discard(task_id)

    def moves(self, limit: float, now: float) -> None:
        """The runner was told to move experts: batches wait for it up to ``limit`` seconds."""
        self.progress_at = now
        self._moving = limit

    def moved(self, now: float) -> None:
        """The experts are where they were to go, or stay where they are."""
        self.progress_at = now
        self._moving = 0.0

    def serving_limit(self, prefill_s: float, decode_s: float) -> float:
        """The prefill limit while a prompt waits or is computed, else the decode limit, else none.

        While experts move it is at least the limit of that.
        """
        if not self._open:
            return self._moving
        return max(prefill_s if self._unseen or self._prefilling else decode_s, self._moving)

    def name(self) -> str:
        """The phase, for people."""
        if self.phase != "serve":
            return self.phase
        if self._moving:
            return "moving experts"
        return "prefill" if self._unseen or self._prefilling else "decode"
