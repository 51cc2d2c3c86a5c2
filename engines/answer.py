"""One growing answer: which text, tokens and log probabilities may be shown so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engines.contract import TokenLogprob
from engines.text import StopStrings, Vocabulary


class Shown(NamedTuple):
    """What became safe to show. A token comes with the first of its text, never before it."""

    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob]


class Answer:
    """Feeds tokens through the detokenizer and the stop strings. One per task, used from one thread."""

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._detokenizer = vocabulary.detokenizer()
        self._stops = StopStrings(stops) if stops else None
        self._waiting: deque[tuple[int, int, TokenLogprob | None]] = deque()
        """Tokens that wait for their text, with the position where it begins."""
        self._produced = self._shown = 0
        self.stopped = False
        """True once a stop string was met; no more tokens may be added."""

    def add(self, token: int, logprob: TokenLogprob | None) -> Shown:
        """Take one drawn token."""
        text = self._detokenizer.add(token)
        if self._stops is None:
            return Shown(text, [token], [logprob] if logprob else [])
        self._waiting.append((self._produced, token, logprob))
        self._produced += len(text)
        safe, self.stopped = self._stops.push(text)
        return self._show(safe)

    def finish(self) -> Shown:
        """The answer ended without a stop string: everything that is left."""
        rest = self._detokenizer.finish()
        if self._stops is None:
            return Shown(rest, [], [])
        safe, self.stopped = self._stops.push(rest)
        if self.stopped:
            return self._show(safe)
        return self._show(safe + self._stops.flush(), last=True)

    def _show(self, text: str, *, last: bool = False) -> Shown:
        self._shown += len(text)
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        while self._waiting and (last or self._waiting[0][0] < self._shown):
            _, token, logprob = self._waiting.popleft()
            tokens.append(token)
            if logprob:
                logprobs.append(logprob)
        return Shown(text, tokens, logprobs)
