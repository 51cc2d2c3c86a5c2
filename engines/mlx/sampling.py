"""How the MLX engine draws tokens: greedy, or from a temperature and a nucleus with a key per request."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
from mlx_lm.sample_utils import greedy_sampler

from engines.contract import Refused
from events.values import Cause, Sampling

Sampler = Callable[[mx.array], mx.array]
"""Log probabilities of shape (rows, vocabulary) to token ids of shape (rows,)."""

_GREEDY_BELOW = 1e-5
"""Temperatures under this one are argmax: their scaled logits would leave the range of float32."""
_MAX_LOGPROBS = 20


def check(sampling: Sampling) -> None:
    """Raise `Refused` for values that no sampler can honour."""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise _refused(f"temperature must be a finite number of at least 0, not {sampling.temperature}")
    if not 0 <= sampling.top_p <= 1:
        raise _refused(f"top_p must lie between 0 and 1, not {sampling.top_p}")
    if not 0 <= sampling.seed < 2**64:
        raise _refused(f"seed must be an integer between 0 and 2**64 - 1, not {sampling.seed}")
    if sampling.max_tokens < 0:
        raise _refused(f"max_tokens must be at least 0 (all the room there is), not {sampling.max_tokens}")
    if not -1 <= sampling.logprobs <= _MAX_LOGPROBS:
        raise _refused(f"logprobs must lie between -1 and {_MAX_LOGPROBS}, not {sampling.logprobs}")
    if not all(sampling.stop):
        raise _refused("a stop string must not be empty")


def sampler(sampling: Sampling) -> Sampler:
    """The sampler of one request. Greedy requests share one, so that a batch of them is one argmax."""
    if sampling.temperature < _GREEDY_BELOW:
        return greedy_sampler
    return SeededSampler(sampling.temperature, sampling.top_p, sampling.seed)


class SeededSampler:
    """Draws with its own key, split once a token: what runs beside it changes nothing.

    Temperature is applied before the nucleus, as vLLM and transformers do. An error in here must not break
    the batch that it is called in: it is kept in ``error`` and the row falls back to its argmax.
    """

    def __init__(self, temperature: float, top_p: float, seed: int) -> None:
        self._scale, self._top_p = 1.0 / temperature, top_p
        self._key = mx.random.key(seed)
        self.error: Exception | None = None

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Draw one token for each row."""
        try:
            return self._draw(logprobs)
        except Exception as error:  # whatever it is, it is this request's alone
            self.error = error
            return greedy_sampler(logprobs)

    def _draw(self, logprobs: mx.array) -> mx.array:
        self._key, key = mx.random.split(self._key)
        logits = logprobs.astype(mx.float32) * self._scale
        if self._top_p < 1:
            logits = nucleus(logits, self._top_p)
        return mx.random.categorical(logits, key=key)


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


def _refused(message: str) -> Refused:
    return Refused(Cause(code="invalid_sampling", message=message + "."))
