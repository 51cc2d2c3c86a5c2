"""How an empty log joins a long one: with a base and the state there, in place of the whole past.

The master offers both on request (`actors.archive`); the ordering core then joins with a run map that ends
at the base, and the past comes later (`actors.backfill`). On NATS the stream is followed from the base on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from actors.deferred import Deferred
from actors.ordering.messages import Join
from events.ends import Base

logger = logging.getLogger("cuebook.joining")

TRIES = 3
"""Requests for a base that may fail before the node takes the whole log instead."""
RETRY_S = 1.0
"""Seconds between two of them, where nothing else says when to ask again."""
PATIENCE_S = 10.0
"""So long an empty log waits, on NATS, for a leader that it can ask."""


class Offer(msgspec.Struct, frozen=True):
    """What a new log may begin after, and the snapshot there; see `projections.snapshot.save_base`."""

    base: Base
    snapshot: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[Offer | None] = msgspec.msgpack.Decoder(Offer | None)


def encode_offer(offer: Offer | None) -> bytes:
    """The bytes of an answer. None: the log is short, take all of it."""
    return _encode(offer)


def decode_offer(answer: bytes) -> Offer | None:
    """What was offered. Raises `msgspec.MsgspecError`."""
    return _decode.decode(answer)


class Offered(NamedTuple):
    """The answer to a request for a base has come, or has failed to."""

    answer: Deferred[bytes]


class Entry(NamedTuple):
    """Join ``node_id`` now, after beginning with ``offer`` where there is one."""

    node_id: str
    join: Join
    offer: Offer | None


class Newcomer:
    """Holds the requests of an empty log to join back until their master has answered about a base.

    The core repeats its request meanwhile; the newest counts. ``ask`` asks a node, ``tell`` gets the answer
    on any thread, for `answered`.
    """

    def __init__(self, ask: Callable[[str], Deferred[bytes]], tell: Callable[[Offered], object]) -> None:
        self._ask = ask
        self._tell = tell
        self._held: tuple[str, Join] | None = None
        self._answer: Deferred[bytes] | None = None
        self._failed = 0

    def hold(self, node_id: str, join: Join) -> None:
        """Keep a request, and ask its master for a base, once."""
        asked, self._held = self._held, (node_id, join)
        if asked is None or asked[0] != node_id:
            self._answer = self._ask(node_id)
            self._answer.add_done_callback(lambda answer: self._tell(Offered(answer)))

    def answered(self, message: Offered) -> Entry | None:
        """What to do now; None where the answer is an old one, or the core's next request asks again."""
        if message.answer is not self._answer or self._held is None:
            return None
        (node_id, join), self._held = self._held, None
        try:
            return Entry(node_id, join, decode_offer(message.answer.get()))
        except Exception as error:
            self._failed += 1
            logger.warning("Node %s has offered no base: %s", node_id, error)
            return Entry(node_id, join, None) if self._failed >= TRIES else None


class Wait:
    """An empty log's wait for a base, where a stream has the log.

    ``tell`` gets the answer on any thread, for `answered`.
    """

    def __init__(self, tell: Callable[[Offered], object]) -> None:
        self._tell = tell
        self._answer: Deferred[bytes] | None = None
        self._left = TRIES

    def seek(self, ask: Callable[[], Deferred[bytes]]) -> None:
        """Ask, unless an answer is due."""
        if self._answer is None:
            self._answer = ask()
            self._answer.add_done_callback(lambda answer: self._tell(Offered(answer)))

    def answered(self, message: Offered) -> Offer | None:
        """What is offered; None where the log is to be taken whole. Raises `NotYet`."""
        self._answer = None
        try:
            return decode_offer(message.answer.get())
        except Exception as error:
            self._left -= 1
            logger.warning("No base was offered: %s", error)
            if self._left > 0:
                raise NotYet from error
        return None

    def expired(self) -> bool:
        """It has been long. True where nobody was asked; else the answer that is due is the last one."""
        self._left = 1
        return self._answer is None


class NotYet(Exception):
    """Go on waiting."""
