"""Continuous batching as engines offer it: what `mlx_lm.generate.BatchGenerator` does, as a protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Sampler = Callable[[Any], Any]
"""A row of the engine's own scores, of shape (rows, vocabulary), to token ids of shape (rows,)."""


class PromptResponse(Protocol):
    """Progress of one prompt: (computed, total) tokens."""

    uid: int
    progress: tuple[int, int]


class TokenResponse(Protocol):
    """One token of one sequence; ``finish_reason`` "stop" means that it is the end-of-sequence token.

    ``logprobs`` is what the engine's `Drawing.logprobs` reads, valid until the next step.
    """

    uid: int
    token: int
    logprobs: Any
    finish_reason: str | None


class Batch(Protocol):
    """Sequences that are computed together. Equal calls number them alike, on any rank."""

    def insert(
        self, prompts: list[list[int]], max_tokens: list[int], *, samplers: list[Sampler]
    ) -> list[int]:
        """Queue prompts and return their uids."""
        ...

    def next(self) -> tuple[Sequence[PromptResponse], Sequence[TokenResponse]]:
        """One decode step of all running sequences, then one prefill chunk."""
        ...

    def remove(self, uids: list[int]) -> object:
        """Drop sequences and their caches, wherever they are."""
        ...
