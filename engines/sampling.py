"""How tokens are drawn, whatever the engine: which values can be honoured, and whose fault an error is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from engines.contract import Refused
from events.values import Cause, Sampling

GREEDY_BELOW = 1e-5
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


class SeededDraw(ABC):
    """Draws with chance of its own: what runs beside it changes nothing.

    Temperature is applied before the nucleus, as vLLM and transformers do. An error in here must not break
    the batch that it is called in: it is kept in ``error`` and the row falls back to `fallback`.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __call__(self, scores: Any) -> Any:
        """Draw one token for each row."""
        try:
            return self.draw(scores)
        except Exception as error:  # whatever it is, it is this request's alone
            self.error = error
            return self.fallback(scores)

    @abstractmethod
    def draw(self, scores: Any) -> Any:
        """One token for each row. May raise anything."""

    @abstractmethod
    def fallback(self, scores: Any) -> Any:
        """Some token for each row, where `draw` failed."""


def _refused(message: str) -> Refused:
    return Refused(Cause(code="invalid_sampling", message=message + "."))
