"""Chunks of a stream as bytes. All but the text is encoded once for each request and spliced around it.

This is the path that every token takes, so it makes no objects but the bytes. What it writes is, byte for
byte, what encoding `ChatChunk` and `TextCompletion` gives; a test holds that.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from api.answers import encode
from api.openai.logprobs import chat_logprobs, text_logprobs
from api.openai.schema import (
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    TextChoice,
    TextCompletion,
    UsageAnswer,
)
from engines.wire import Chunk
from events.values import FinishReason

DONE = b"data: [DONE]\n\n"

_HOLE = "\x00hole\x00"
_ENCODED_HOLE = encode(_HOLE)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every chunk of one answer repeats. ``usage``: a last chunk with the usage was asked for."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: int
    usage: bool


class ChunkEncoder(Protocol):
    """Makes the events of one answer."""

    def opening(self) -> bytes:
        """The events before any text."""
        ...

    def text(self, index: int, chunk: Chunk) -> bytes:
        """New text of a choice."""
        ...

    def finish(self, index: int, reason: FinishReason) -> bytes:
        """The end of a choice."""
        ...

    def usage(self, usage: UsageAnswer) -> bytes:
        """The last chunk, which has the usage and no choices."""
        ...


class ChatEncoder:
    """Events of a streamed chat completion."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._around = [self._split(index) for index in range(head.choices)]

    def opening(self) -> bytes:
        """One event a choice, with the role."""
        role = ChatDelta(role="assistant", content="")
        indices = range(self._head.choices)
        return b"".join(self._event(ChatChunkChoice(index=index, delta=role)) for index in indices)

    def text(self, index: int, chunk: Chunk) -> bytes:
        """New text of a choice."""
        if chunk.logprobs:
            delta, logprobs = ChatDelta(content=chunk.text), chat_logprobs(chunk.logprobs)
            return self._event(ChatChunkChoice(index=index, delta=delta, logprobs=logprobs))
        before, after = self._around[index]
        return before + encode(chunk.text) + after

    def finish(self, index: int, reason: FinishReason) -> bytes:
        """The end of a choice."""
        return self._event(ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=reason))

    def usage(self, usage: UsageAnswer) -> bytes:
        """The last chunk, which has the usage and no choices."""
        return _event(self._chunk([], usage))

    def _split(self, index: int) -> tuple[bytes, bytes]:
        return _around(self._event(ChatChunkChoice(index=index, delta=ChatDelta(content=_HOLE))))

    def _event(self, choice: ChatChunkChoice) -> bytes:
        return _event(self._chunk([choice], None if self._head.usage else msgspec.UNSET))

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: UsageAnswer | msgspec.UnsetType | None
    ) -> ChatChunk:
        head = self._head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=choices,
            usage=usage,
        )


class TextEncoder:
    """Events of a streamed text completion."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._around = [
            _around(self._event(TextChoice(index=index, text=_HOLE))) for index in range(head.choices)
        ]
        self._offsets = [0] * head.choices

    def opening(self) -> bytes:
        """Nothing: the first event has text."""
        return b""

    def text(self, index: int, chunk: Chunk) -> bytes:
        """New text of a choice."""
        if chunk.logprobs:
            logprobs = text_logprobs(chunk.logprobs, self._offsets[index])
            self._offsets[index] += sum(len(row.text) for row in chunk.logprobs)
            return self._event(TextChoice(index=index, text=chunk.text, logprobs=logprobs))
        before, after = self._around[index]
        return before + encode(chunk.text) + after

    def finish(self, index: int, reason: FinishReason) -> bytes:
        """The end of a choice."""
        return self._event(TextChoice(index=index, text="", finish_reason=reason))

    def usage(self, usage: UsageAnswer) -> bytes:
        """The last chunk, which has the usage and no choices."""
        return _event(self._chunk([], usage))

    def _event(self, choice: TextChoice) -> bytes:
        return _event(self._chunk([choice], None if self._head.usage else msgspec.UNSET))

    def _chunk(
        self, choices: list[TextChoice], usage: UsageAnswer | msgspec.UnsetType | None
    ) -> TextCompletion:
        head = self._head
        return TextCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=choices,
            usage=usage,
        )


def _event(value: msgspec.Struct) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _around(event: bytes) -> tuple[bytes, bytes]:
    before, _, after = event.rpartition(_ENCODED_HOLE)
    return before, after
