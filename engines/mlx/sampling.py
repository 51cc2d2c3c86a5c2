"""How the MLX engine draws tokens: greedy, or from a temperature and a nucleus with a key per request."""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import greedy_sampler
from numpy.typing import NDArray

from engines.batching import Sampler
from engines.sampling import GREEDY_BELOW, SeededDraw
from events.values import Sampling


class MlxDrawing:
    """Implements `engines.generator.Drawing`. Rows are log probabilities (of the model, before temperature).

    They are already computed and read as numpy views. A row that must be cast first is cast on a stream of
    its own, so that it does not queue behind the decode step that is under way.
    """

    def __init__(self) -> None:
        self._stream = mx.new_stream(mx.default_device())

    def sampler(self, sampling: Sampling) -> Sampler:
        """The sampler of one request."""
        return sampler(sampling)

    def logprobs(self, row: mx.array) -> NDArray[np.float32]:
        """The row (vocabulary,) for numpy."""
        if row.dtype != mx.float32:
            row = row.astype(mx.float32, stream=self._stream)
        return cast("NDArray[np.float32]", np.array(row, copy=False))


def sampler(sampling: Sampling) -> Sampler:
    """The sampler of one request. Greedy requests share one, so that a batch of them is one argmax."""
    if sampling.temperature < GREEDY_BELOW:
        return greedy_sampler
    return SeededSampler(sampling.temperature, sampling.top_p, sampling.seed)


def nothing(logprobs: mx.array) -> mx.array:
    """The sampler of ranks that draw nothing: token 0, yet not before the step is computed."""
    return mx.argmax(logprobs[..., :1], axis=-1)


class SeededSampler(SeededDraw):
    """Draws with its own key, split once a token."""

    def __init__(self, temperature: float, top_p: float, seed: int) -> None:
        super().__init__()
        self._scale, self._top_p = 1.0 / temperature, top_p
        self._key = mx.random.key(seed)

    def draw(self, scores: mx.array) -> mx.array:
        """One token for each row of log probabilities."""
        self._key, key = mx.random.split(self._key)
        logits = scores.astype(mx.float32) * self._scale
        if self._top_p < 1:
            logits = nucleus(logits, self._top_p)
        return mx.random.categorical(logits, key=key)

    def fallback(self, scores: mx.array) -> mx.array:
        """The likeliest token of each row."""
        return greedy_sampler(scores)


def nucleus(logits: mx.array, top_p: float) -> mx.array:
    """Keep the smallest set of tokens whose probability reaches ``top_p``, at least one; the rest is -inf.

    Written out because mlx-lm's is compiled anew for every value of ``top_p``. Holtzman et al. 2019,
    "The Curious Case of Neural Text Degeneration".
    """
    ascending = mx.sort(logits, axis=-1)
    probs = mx.softmax(ascending, axis=-1)
    above = mx.cumsum(probs, axis=-1, reverse=True, inclusive=False)
    best = ascending[..., -1:]
    kept = mx.min(mx.where(above < top_p, ascending, best), axis=-1, keepdims=True)
    return mx.where(logits < kept, -mx.inf, logits)
