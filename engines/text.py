"""Text of a growing answer: exact incremental detokenizing, and stop strings that never leak.

Engine-neutral: it works on token ids and a `tokenizers.Tokenizer`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer, decoders

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Turns tokens into text one by one.

    All strings that it returned, joined, are the tokenizer's own decoding of all tokens. A character is
    returned when its last byte is there, never before.
    """

    def add(self, token: int) -> str:
        """The text that became whole with this token."""
        ...

    def finish(self) -> str:
        """What is left: incomplete bytes become U+FFFD, as the tokenizer decodes them."""
        ...


class Vocabulary:
    """The bytes of every token, and detokenizers for answers. Made once for a model; thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        names = [tokenizer.id_to_token(token) or "" for token in range(size)]
        self._pieces = [_byte_level_piece(n) if self._byte_level else _plain_piece(n) for n in names]
        self._bytes = frozenset(i for i, name in enumerate(names) if _BYTE_TOKEN.fullmatch(name))

    def __len__(self) -> int:
        return len(self._pieces)

    def piece(self, token: int) -> bytes:
        """The token's own bytes; empty for an id that the tokenizer does not know."""
        return self._pieces[token] if token < len(self._pieces) else b""

    def detokenizer(self) -> Detokenizer:
        """A fresh detokenizer for one answer."""
        if self._byte_level:
            return _ByteLevelDetokenizer(self._pieces)
        return _WindowDetokenizer(self._tokenizer, self._bytes)


class _ByteLevelDetokenizer:
    """For byte-level BPE: a table of bytes and an incremental UTF-8 decoder."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def add(self, token: int) -> str:
        return self._decode(self._pieces[token]) if token < len(self._pieces) else ""

    def finish(self) -> str:
        return self._decode(b"", True)


class _WindowDetokenizer:
    """For all other tokenizers: decodes the tokens since the last sure boundary after an anchor token.

    The anchor keeps decoders that treat the first token differently (a stripped space) from seeing a first
    token. A run of byte tokens is decoded when it has ended: its bytes may turn out invalid as a whole.
    """

    def __init__(self, tokenizer: Tokenizer, byte_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._byte_tokens = byte_tokens
        self._anchor: list[int] = []
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        if self._tokenizer.id_to_token(token) is None:
            return ""
        self._pending.append(token)
        if token in self._byte_tokens:
            return ""
        text = self._new_text()
        if text.endswith(_REPLACEMENT):
            return ""
        self._anchor, self._pending = [token], []
        return text

    def finish(self) -> str:
        text = self._new_text()
        self._pending = []
        return text

    def _new_text(self) -> str:
        seen = self._decode(self._anchor) if self._anchor else ""
        return self._decode(self._anchor + self._pending)[len(seen) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


class StopStrings:
    """Holds back text that may yet become a stop string. Depends on the text alone, not on its chunks.

    The match that ends first stops the answer; of several that end there, the one that starts first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops))
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; returns what is safe to show and whether a stop string was met (nothing follows it)."""
        if not text:
            return "", False
        text, self._held = self._held + text, ""
        ends = [(at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0]
        if ends:
            return text[: min(ends)[1]], True
        safe = len(text) - self._open_length(text)
        self._held = text[safe:]
        return text[:safe], False

    def flush(self) -> str:
        """The answer ended otherwise: what was held back is text after all."""
        held, self._held = self._held, ""
        return held

    def _open_length(self, text: str) -> int:
        """Length of the longest end of ``text`` with which a stop string begins."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return len(text) - start
        return 0


def _byte_level_piece(name: str) -> bytes:
    """Undo GPT-2's printable alphabet; a token outside it (some added ones) is its own text."""
    try:
        return bytes(_ALPHABET[char] for char in name)
    except KeyError:
        return name.encode()


def _plain_piece(name: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(match[1], 16)]) if match else name.replace("▁", " ").encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's `bytes_to_unicode`, reversed: printable bytes are themselves, the rest follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_ALPHABET = _alphabet()
