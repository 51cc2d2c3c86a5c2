"""Ranks in lockstep: every rank runs the same batch generator, and rank 0 says what it does next.

Two batch generators that get the same calls build the same batches, run the same collectives in the same
order, and number their sequences alike. So only the calls travel, a few bytes each, over the side links;
prompts, tokens, samplers and stop strings stay on rank 0. The other ranks feed tokens of 0 and draw
nothing; where they need real tokens (such as `engines.mlx.tensor`) a collective brings them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engines.batching import Batch, PromptResponse, Sampler, TokenResponse
from engines.contract import GroupLost
from engines.link import Insert, Link, Remove, Step, Warmed, Word
from events.values import Cause

Broken = Callable[[RuntimeError], Cause | None]
"""The cause where an error of a step is that of a collective whose other ranks are gone, else None."""


class LeadingBatch:
    """Rank 0's batch generator, which has the others do the same. Implements `engines.batching.Batch`.

    ``batch`` must not end a sequence at a token: the other ranks could not know which one it was.

    Sequences end at their token limit in all of them; for an end-of-sequence token the owner calls
    `remove`, as for a stop string.
    """

    def __init__(self, batch: Batch, links: Sequence[Link], eos: Sequence[int], broken: Broken) -> None:
        self._batch = batch
        self._broken = broken
        self._links = links
        self._eos = frozenset(eos)

    def insert(
        self, prompts: list[list[int]], max_tokens: list[int], *, samplers: list[Sampler]
    ) -> list[int]:
        """Queue prompts, here and there. Raises `GroupLost`, as the other methods do."""
        uids = self._batch.insert(prompts, max_tokens, samplers=samplers)
        for prompt, room in zip(prompts, max_tokens, strict=True):
            self._tell(Insert(len(prompt), room))
        return uids

    def next(self) -> tuple[Sequence[PromptResponse], Sequence[TokenResponse]]:
        """One step of all ranks."""
        self._tell(Step())
        prompts, tokens = _computed(self._batch, self._broken)
        for response in tokens:
            if response.token in self._eos:
                response.finish_reason = "stop"
        return prompts, tokens

    def remove(self, uids: list[int]) -> object:
        """Drop sequences, here and there."""
        self._tell(Remove(uids))
        return self._batch.remove(uids)

    def warmed(self) -> None:
        """Let the others end their warm-up."""
        self._tell(Warmed())

    def _tell(self, word: Word) -> None:
        for link in self._links:
            link.send(word)


class BatchFollower:
    """A rank other than 0, which draws nothing. Implements `engines.contract.Follower`."""

    def __init__(self, batch: Batch, link: Link, sampler: Sampler, broken: Broken) -> None:
        self._batch = batch
        self._link = link
        self._sampler = sampler
        self._broken = broken

    def warm_up(self) -> None:
        """Follow until rank 0 has warmed up."""
        while not isinstance(word := self._link.take(), Warmed):
            self.obey(word)

    def follow(self) -> None:
        """Take part in every step of rank 0. Raises `GroupLost`."""
        while True:
            self.obey(self._link.take())

    def stop(self) -> None:
        """End `follow` before the next step."""
        self._link.close()

    def obey(self, word: Word) -> None:
        """Do what rank 0 does. Raises `GroupLost`."""
        match word:
            case Step():
                _computed(self._batch, self._broken)
            case Insert():
                self._batch.insert([[0] * word.tokens], [word.room], samplers=[self._sampler])
            case Remove():
                self._batch.remove(word.uids)
            case _:
                raise RuntimeError(f"rank 0 said {word} where a step was due")


def _computed(batch: Batch, broken: Broken) -> tuple[Sequence[PromptResponse], Sequence[TokenResponse]]:
    """One step. Raises `GroupLost` where a collective in it fails."""
    try:
        return batch.next()
    except RuntimeError as error:
        cause = broken(error)
        if cause is None:
            raise
        raise GroupLost(cause) from error
