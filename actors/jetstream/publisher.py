"""Publishing decisions: one message at a time, each for one place in the stream only.

What comes meanwhile goes together into the next message. More than one under way would not be safe with the
index as the only fence: the first may be refused because another has written, and the second then be for the
right place by its number and follow what is not there. Nor could a second fence help: servers refuse to
check what follows a message of the same subject that they have yet to store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nats.js.errors import NoStreamResponseError

from actors.jetstream.messages import encode, subject_of
from actors.jetstream.store import UNREACHABLE, Store, told
from actors.ordering.leased import Granted, Publish

logger = logging.getLogger("cuebook.jetstream")

ANSWER_S = 2.5
"""A message without an answer for so long counts as lost; only the stream can tell."""
LEADERLESS_S = 15.0
"""So long a stream may have no leader that takes messages, while the lease can be renewed."""
_PAUSE_S = 0.1
MAX_BYTES = 256 * 1024
"""Bytes in one message, unless a single decision has more, or the servers take less."""
HEADROOM = 1024
"""Bytes of a message that its headers may take."""
_FRAMING = 5  # bytes that encode an entry's length


class Publisher:
    """``failed`` is called where a message is refused or gets no answer: its term must end."""

    def __init__(self, store: Store, failed: Callable[[], None]) -> None:
        self._store = store
        self._failed = failed
        self._term = 0
        self._last = 0
        self._waiting: list[Publish] = []
        self._wake = asyncio.Event()

    def begin(self, grant: Granted) -> None:
        """A term begins."""
        self._term, self._last = grant.term, grant.upto

    def end(self) -> None:
        """The term is over; what was published in it without an answer may still get into the stream."""
        self._term = 0

    def move(self, store: Store) -> None:
        """Another stream has taken the place of the one before. Ends the term."""
        self.end()
        self._store = store

    def offer(self, batch: Publish) -> None:
        """Publish a batch behind those before it, while its term lasts."""
        self._waiting.append(batch)
        self._wake.set()

    async def run(self) -> None:
        """Publish what is offered; for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            offered, self._waiting = self._waiting, []
            for term, subject, message in self._messages(offered):
                if term != self._term or not await self._publish(term, subject, message):
                    break

    def _messages(self, offered: list[Publish]) -> list[tuple[int, str, bytes]]:
        """As few messages as will hold the batches of the current term, in order."""
        batches = [batch for batch in offered if batch.term == self._term]
        if not batches:
            return []
        subject = subject_of(self._store.root, batches[0].epoch)
        limit = min(MAX_BYTES, self._store.client.max_payload - HEADROOM)
        pages: list[list[bytes]] = [[]]
        size = 0
        for entry in (entry for batch in batches for entry in batch.entries):
            if pages[-1] and size + len(entry) + _FRAMING > limit:
                pages.append([])
                size = 0
            pages[-1].append(entry)
            size += len(entry) + _FRAMING
        return [(self._term, subject, encode(page)) for page in pages]

    async def _publish(self, term: int, subject: str, message: bytes) -> bool:
        """False where the message may not be in the stream; the term is over then."""
        try:
            async with asyncio.timeout(LEADERLESS_S):
                self._last = await self._stored(term, subject, message)
            return True
        except UNREACHABLE as error:
            logger.warning("What is under way in term %d may be void: %s", term, told(error))
            if term == self._term:
                self.end()
                self._failed()
            return False

    async def _stored(self, term: int, subject: str, message: bytes) -> int:
        """The message's number. Sent again only where it is certain that nobody took it."""
        headers = {"Nats-Expected-Last-Sequence": str(self._last)}
        while True:
            try:
                answer = await self._store.js.publish(subject, message, ANSWER_S, headers=headers)
            except NoStreamResponseError:
                if term != self._term:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                return answer.seq
