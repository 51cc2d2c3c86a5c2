"""Continuous batching on torch: sequences join and leave between steps, prompts are computed in chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from engines.batching import Sampler
from engines.contract import LoadSpec
from engines.torch.cache import SlotCache
from engines.torch.passes import Compute, Pass
from engines.torch.sampling import greedy


@dataclass(slots=True)
class Filled:
    """Progress of one prompt: (computed, total) tokens."""

    uid: int
    progress: tuple[int, int]


@dataclass(slots=True)
class Drawn:
    """One token of one sequence, with the logits (vocabulary,) that it was drawn from."""

    uid: int
    token: int
    logprobs: torch.Tensor
    finish_reason: str | None


@dataclass(slots=True, eq=False)
class _Sequence:
    uid: int
    prompt: list[int]
    room: int
    """Tokens that may yet be drawn."""
    sampler: Sampler
    slot: int = -1
    length: int = 0
    """Tokens whose keys and values are in the cache."""
    last: int = 0
    """The token that was drawn last, and is computed next."""


class TorchBatch:
    """Implements `engines.batching.Batch`. Equal calls make equal passes, in the same order, on any rank.

    A step is one decode pass of all running sequences, which draw a token each, then one chunk of one prompt.
    The chunk that ends a prompt draws the sequence's first token. All tokens of a pass come to the host at
    once. ``eos`` are the tokens that end a sequence.
    """

    def __init__(
        self, compute: Compute, cache: SlotCache, device: torch.device, eos: Sequence[int], spec: LoadSpec
    ) -> None:
        self._compute = compute
        self._cache = cache
        self._device = device
        self._eos = frozenset(eos)
        self._slots = spec.batch
        self._chunk = spec.prefill_chunk
        self._waiting: deque[_Sequence] = deque()
        self._filling: _Sequence | None = None
        self._running: list[_Sequence] = []
        """In the order of their slots, from 0; a prompt that is being computed has the slot after them."""
        self._uids = 0

    def insert(
        self, prompts: list[list[int]], max_tokens: list[int], *, samplers: list[Sampler]
    ) -> list[int]:
        """Queue prompts and return their uids."""
        first = self._uids
        for prompt, room, sampler in zip(prompts, max_tokens, samplers, strict=True):
            self._waiting.append(_Sequence(self._uids, prompt, room, sampler))
            self._uids += 1
        return list(range(first, self._uids))

    @torch.inference_mode()
    def next(self) -> tuple[list[Filled], list[Drawn]]:
        """One decode step of all running sequences, then one prefill chunk."""
        drawn = self._decode() if self._running else []
        filled: list[Filled] = []
        if self._filling is None and self._waiting and len(self._running) < self._slots:
            self._filling = self._waiting.popleft()
            self._filling.slot = len(self._running)
        if self._filling is not None:
            filled, first = self._prefill(self._filling)
            drawn += first
        return filled, drawn

    @torch.inference_mode()
    def remove(self, uids: list[int]) -> None:
        """Drop sequences and their caches, wherever they are."""
        gone = set(uids)
        self._waiting = deque(s for s in self._waiting if s.uid not in gone)
        if self._filling is not None and self._filling.uid in gone:
            self._cache.clear(self._filling.slot, self._filling.length)
            self._filling = None
        for sequence in [s for s in self._running if s.uid in gone]:
            self._leave(sequence)

    def _decode(self) -> list[Drawn]:
        running = self._running
        longest = max(sequence.length for sequence in running)
        work = Pass(
            tokens=self._column([sequence.last for sequence in running]),
            positions=self._column([sequence.length for sequence in running]),
            uids=[sequence.uid for sequence in running],
            first_slot=0,
            end=longest + 1,
            is_prefill=False,
        )
        logits = self._compute(work)
        for sequence in running:
            sequence.length += 1
        return self._draw(running, logits)

    def _prefill(self, sequence: _Sequence) -> tuple[list[Filled], list[Drawn]]:
        start = sequence.length
        end = min(start + self._chunk, len(sequence.prompt))
        work = Pass(
            tokens=torch.tensor([sequence.prompt[start:end]], device=self._device),
            positions=torch.arange(start, end, device=self._device)[None],
            uids=[sequence.uid],
            first_slot=sequence.slot,
            end=end,
            is_prefill=True,
        )
        logits = self._compute(work)
        sequence.length = end
        filled = [Filled(sequence.uid, (end, len(sequence.prompt)))]
        if end < len(sequence.prompt):
            return filled, []
        self._filling = None
        self._running.append(sequence)
        return filled, self._draw([sequence], logits)

    def _draw(self, sequences: list[_Sequence], logits: torch.Tensor) -> list[Drawn]:
        """Draw a token for each row; those whose sequence ends leave."""
        tokens = _sampled(sequences, logits)
        drawn = [
            Drawn(sequence.uid, token, row, self._take(sequence, token))
            for sequence, token, row in zip(sequences, tokens, logits, strict=True)
        ]
        ended = {response.uid for response in drawn if response.finish_reason}
        for sequence in [s for s in sequences if s.uid in ended]:
            self._leave(sequence)
        return drawn

    def _take(self, sequence: _Sequence, token: int) -> str | None:
        sequence.last = token
        sequence.room -= 1
        if token in self._eos:
            return "stop"
        return None if sequence.room else "length"

    def _leave(self, sequence: _Sequence) -> None:
        """Take a sequence out of the running ones. The last of them, then a prompt, close the gap."""
        gap = sequence.slot
        self._cache.clear(gap, sequence.length)
        last = self._running.pop()
        if last is not sequence:
            self._running[gap] = last
            gap = self._move(last, gap)
        if self._filling is not None:
            self._move(self._filling, gap)

    def _move(self, sequence: _Sequence, slot: int) -> int:
        """Move a sequence; returns the slot that it leaves."""
        left = sequence.slot
        self._cache.move(left, slot, sequence.length)
        sequence.slot = slot
        return left

    def _column(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=self._device)[:, None]


def _sampled(sequences: list[_Sequence], logits: torch.Tensor) -> list[int]:
    """A token for each row, all greedy ones by one argmax."""
    samplers = {sequence.sampler for sequence in sequences}
    if len(samplers) == 1:
        tokens: torch.Tensor = samplers.pop()(logits)
    else:
        tokens = greedy(logits)
        for row, sequence in enumerate(sequences):
            if sequence.sampler is not greedy:
                tokens[row : row + 1] = sequence.sampler(logits[row : row + 1])
    return cast("list[int]", tokens.tolist())  # pyright: ignore[reportUnknownMemberType]
