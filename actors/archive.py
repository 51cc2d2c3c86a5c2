"""The archive: gives other nodes what they lack of this node's log. The journal takes no part in it."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import msgspec

from actors.actor import Actor
from actors.joining import Offer, encode_offer
from actors.replica import Paths
from events.errors import LogRewound
from events.reader import LogReader
from projections.snapshot import pack

LONG = 20_000
"""Decisions from which on a new node gets a base; a shorter log it takes whole."""
MARGIN = 1_000
"""Decisions between the base and the head. A fork is rarely older: a node can't go back behind its base."""
PAGE, PAGE_BYTES = 1_000, 1024 * 1024
"""Decisions of the past in one answer, and their bytes."""

logger = logging.getLogger("cuebook.archive")

_encode = msgspec.msgpack.Encoder().encode
_decode_upto = msgspec.msgpack.Decoder(int).decode
_decode_entries = msgspec.msgpack.Decoder(list[bytes]).decode


class BaseWanted(NamedTuple):
    """Ask for the bytes of an `actors.joining.Offer`, or of None."""


class PastWanted(NamedTuple):
    """Ask for the bytes of the last decisions up to ``upto``; of none where this log does not have them."""

    upto: int


def encode_wanted(upto: int) -> bytes:
    """The bytes of a `PastWanted`."""
    return _encode(upto)


def decode_wanted(payload: bytes) -> PastWanted:
    """Raises `msgspec.MsgspecError`."""
    return PastWanted(_decode_upto(payload))


def decode_past(payload: bytes) -> list[bytes]:
    """The decisions of an answer, in order, for `EventLog.backfill`. Raises `msgspec.MsgspecError`."""
    return _decode_entries(payload)


class Archive(Actor):
    """One for each node of a cluster."""

    def __init__(self, paths: Paths) -> None:
        super().__init__()
        self._paths = paths

    def started(self) -> None:
        """Open the log."""
        self._reader = self._paths.reader()

    def stopping(self) -> None:
        """Close it."""
        self._reader.close()

    def receive(self, message: Any) -> bytes:
        """Answer one request."""
        match message:
            case BaseWanted():
                return encode_offer(self._offer())
            case PastWanted(upto):
                return _encode(self._reader.entries_upto(upto, PAGE, PAGE_BYTES))
            case _:
                raise TypeError(f"the archive takes no {type(message).__name__}")

    def _offer(self) -> Offer | None:
        while True:
            try:
                return offer(self._paths, self._reader)
            except LogRewound:
                logger.info("The log was rewound while a base was being made: making it again")


def offer(paths: Paths, reader: LogReader) -> Offer | None:
    """A base for a new log, near the head. None where the log is short. Raises `LogRewound`."""
    last = reader.last_decision()
    if last < LONG:
        return None
    own = reader.base()
    base = reader.base_at(max(last - MARGIN, own.decision_id if own is not None else 0))
    return Offer(base, pack(reader, paths.snapshots, base.seq))
