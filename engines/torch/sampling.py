"""How the torch engine draws tokens: greedy, or from a temperature and a nucleus with an own generator."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from engines.batching import Sampler
from engines.sampling import GREEDY_BELOW, SeededDraw
from events.values import Sampling


class TorchDrawing:
    """Implements `engines.generator.Drawing`. Rows are the model's logits, before temperature."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def sampler(self, sampling: Sampling) -> Sampler:
        """The sampler of one request. Greedy requests share one, so that a batch of them is one argmax."""
        if sampling.temperature < GREEDY_BELOW:
            return greedy
        return SeededSampler(sampling.temperature, sampling.top_p, sampling.seed, self._device)

    def logprobs(self, row: torch.Tensor) -> NDArray[np.float32]:
        """The log probabilities (vocabulary,) of a row of logits."""
        return torch.log_softmax(row.float(), dim=-1).cpu().numpy()


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row."""
    return logits.argmax(dim=-1)


def nothing(logits: torch.Tensor) -> torch.Tensor:
    """The sampler of ranks that draw nothing: token 0, whatever the logits are."""
    return torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)


class SeededSampler(SeededDraw):
    """Draws with its own `torch.Generator`, once a token."""

    def __init__(self, temperature: float, top_p: float, seed: int, device: torch.device) -> None:
        super().__init__()
        self._scale, self._top_p = 1.0 / temperature, top_p
        self._chance = torch.Generator(device).manual_seed(seed)

    def draw(self, scores: torch.Tensor) -> torch.Tensor:
        """One token for each row of logits."""
        logits = scores.float() * self._scale
        if self._top_p < 1:
            logits = nucleus(logits, self._top_p)
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=self._chance)[:, 0]

    def fallback(self, scores: torch.Tensor) -> torch.Tensor:
        """The likeliest token of each row."""
        return greedy(scores)


def nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of tokens whose probability reaches ``top_p``, at least one; the rest is -inf.

    Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration".
    """
    best_first = logits.sort(dim=-1, descending=True).values
    probs = best_first.softmax(dim=-1)
    above = probs.cumsum(dim=-1) - probs
    above[..., 0] = -1.0
    least = best_first.masked_fill(above >= top_p, torch.inf).amin(dim=-1, keepdim=True)
    return logits.masked_fill(logits < least, -torch.inf)
