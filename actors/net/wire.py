"""The bytes on a link: frames, which are small, and the records inside, which may be large.

A frame is a kind byte and a body. `RECORDS` holds whole records one after another; a record larger than
`FRAME_BYTES` is cut into `PART` frames and a `LAST` one, so that heart-beats pass between them. A record is
a header (kind, length of topic, correlation, length of payload; big-endian), the topic and the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from actors.net.transport import MAX_TOPIC_BYTES

FRAME_BYTES = 64 * 1024
MAX_RECORD_BYTES = 256 * 1024 * 1024
_HEADER = struct.Struct(">BBII")


class FrameKind(IntEnum):
    """What the body of a frame is."""

    RECORDS = 0
    PART = 1
    LAST = 2
    BEAT = 3  # a sign of life; the body is the sender's own time stamp
    ECHO = 4  # the body of a BEAT, sent back
    PROBE = 5  # filling, for the bandwidth
    PROBE_END = 6
    PROBED = 7  # the measured bytes a second, as a double
    PEERS = 8  # addresses of further nodes
    BYE = 9  # the peer leaves on purpose


class RecordKind(IntEnum):
    """What a record is."""

    MESSAGE = 0
    REQUEST = 1
    ANSWER = 2
    ERROR = 3


class Record(NamedTuple):
    """A message, a request or what answers it. ``correlation`` ties an answer to its request."""

    kind: RecordKind
    correlation: int
    topic: str
    payload: bytes


class MalformedFrame(Exception):
    """A peer sent bytes that no node of this version sends."""


def encode(kind: RecordKind, correlation: int, topic: str, payload: bytes) -> bytes:
    """The bytes of a record. Raises ValueError for a topic or a payload that is too long."""
    name = topic.encode()
    if len(name) > MAX_TOPIC_BYTES:
        raise ValueError(f"A topic has at most {MAX_TOPIC_BYTES} bytes, this one has {len(name)}: {topic!r}.")
    if len(payload) > MAX_RECORD_BYTES:
        raise ValueError(f"A message has at most {MAX_RECORD_BYTES} bytes, this one has {len(payload)}.")
    return b"".join((_HEADER.pack(kind, len(name), correlation, len(payload)), name, payload))


def frame(kind: FrameKind, body: bytes = b"") -> bytes:
    """One frame."""
    return bytes((kind,)) + body


class Assembler:
    """Records from the frames of one link, in order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, kind: int, body: bytes) -> Iterator[Record]:
        """The records that a RECORDS, PART or LAST frame completes. Raises `MalformedFrame`."""
        if kind == FrameKind.RECORDS and not self._parts:
            yield from _records(body)
            return
        if kind not in (FrameKind.PART, FrameKind.LAST):
            raise MalformedFrame(f"frame of kind {kind} inside a large message")
        self._parts.append(body)
        self._size += len(body)
        if self._size > MAX_RECORD_BYTES + _HEADER.size + MAX_TOPIC_BYTES:
            raise MalformedFrame(f"a message of more than {MAX_RECORD_BYTES} bytes")
        if kind == FrameKind.LAST:
            whole = b"".join(self._parts)
            self._parts, self._size = [], 0
            yield from _records(whole)


def _records(data: bytes) -> Iterator[Record]:
    position = 0
    while position < len(data):
        try:
            kind, name_size, correlation, size = _HEADER.unpack_from(data, position)
            start = position + _HEADER.size + name_size
            topic = data[position + _HEADER.size : start].decode()
            record = Record(RecordKind(kind), correlation, topic, data[start : start + size])
        except (struct.error, ValueError) as error:
            raise MalformedFrame(f"a record that can't be read: {error}") from error
        position = start + size
        if position > len(data):
            raise MalformedFrame(f"a record that ends {position - len(data)} bytes after its frame")
        yield record
