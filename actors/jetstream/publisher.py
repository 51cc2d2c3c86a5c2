"""Publishing decisions: many under way at once, each for one place in the stream only."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

from nats.aio.msg import Msg

from actors.jetstream.store import UNREACHABLE, Store
from actors.jetstream.subjects import subject_of
from actors.ordering.leased import Publish

logger = logging.getLogger("cuebook.jetstream")

ANSWER_S = 2.5
"""A publication without an answer for so long counts as lost; only the stream can tell."""
_LOOK_S = 0.25


class Publisher:
    """``failed`` is called once where a publication of the current term fails, with the reason.

    What was published in a term is void once its term ends or one of them has failed; answers to it are
    passed over.
    """

    def __init__(self, store: Store, failed: Callable[[str], None]) -> None:
        self._store = store
        self._failed = failed
        self._now = asyncio.get_running_loop().time
        self._inbox = store.client.new_inbox()
        self._term = 0
        self._published = 0
        self._under_way: dict[int, float] = {}
        self._queue: asyncio.Queue[Publish] = asyncio.Queue()

    async def start(self) -> None:
        """Be ready for answers."""
        await self._store.client.subscribe(f"{self._inbox}.*.*", cb=self._answered)  # pyright: ignore[reportUnknownMemberType]

    def begin(self, term: int) -> None:
        """A new term begins."""
        self._term, self._published = term, 0
        self._under_way.clear()

    def end(self) -> None:
        """The term is over."""
        self._term = 0
        self._under_way.clear()

    def offer(self, batch: Publish) -> None:
        """Publish a batch behind those before it, while its term lasts."""
        self._queue.put_nowait(batch)

    async def run(self) -> None:
        """Publish what is offered, and look for what gets no answer; for ever."""
        await asyncio.gather(self._publish_all(), self._watch())

    async def _publish_all(self) -> None:
        while True:
            batch = await self._queue.get()
            subject = subject_of(self._store.root, batch.epoch)
            for index, entry in enumerate(batch.entries, batch.first):
                if batch.term != self._term:
                    break
                await self._publish(subject, index, entry)

    async def _publish(self, subject: str, index: int, entry: bytes) -> None:
        headers = {
            "Nats-Expected-Last-Sequence": str(index - 1),
            "Nats-Expected-Last-Subject-Sequence": str(self._published),
        }
        self._under_way[index], self._published = self._now(), index
        try:
            reply = f"{self._inbox}.{self._term}.{index}"
            await self._store.client.publish(subject, entry, reply=reply, headers=headers)
        except UNREACHABLE as error:
            self._fail(str(error))

    async def _answered(self, message: Msg) -> None:
        term, index = map(int, message.subject.rsplit(".", 2)[1:])
        if term != self._term:
            return
        if not message.data:
            self._fail("the stream has no leader")  # nobody was there to take it
            return
        error = json.loads(message.data).get("error")
        if error is None:
            self._under_way.pop(index, None)
        else:
            self._fail(str(error.get("description")))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            oldest = next(iter(self._under_way.values()), None)
            if oldest is not None and self._now() - oldest > ANSWER_S:
                self._fail(f"no answer for {ANSWER_S:g} s")

    def _fail(self, why: str) -> None:
        if self._term:
            self.end()
            logger.warning("Publications of this term are void: %s", why)
            self._failed(why)
