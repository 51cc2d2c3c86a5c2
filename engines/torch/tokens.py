"""Real tokens on every rank: rank 0 says, before each forward pass, what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from engines.link import Link, Tokens
from engines.torch.passes import Compute, Pass


def leading(compute: Compute, links: Sequence[Link]) -> Compute:
    """``compute`` of rank 0, which tells the others its tokens."""

    def told(passed: Pass) -> torch.Tensor:
        word = Tokens(cast("Any", passed.tokens.flatten()).tolist())
        for link in links:
            link.send(word)
        return compute(passed)

    return told


def following(compute: Compute, link: Link) -> Compute:
    """``compute`` of another rank, which takes rank 0's tokens in the place of its own."""

    def heard(passed: Pass) -> torch.Tensor:
        word = link.take()
        assert isinstance(word, Tokens), word
        passed.tokens.copy_(torch.tensor(word.tokens).view(passed.tokens.shape))
        return compute(passed)

    return heard
