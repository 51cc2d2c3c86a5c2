"""Log probabilities of drawn tokens, read only for the tasks that asked for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engines.contract import TokenLogprob
from engines.text import Vocabulary


class LogprobReader:
    """Names what a row of log probabilities (vocabulary,) says."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def read(self, token: int, values: NDArray[np.float32], top: int) -> TokenLogprob:
        """The drawn token's entry, with the ``top`` likeliest at its place."""
        return TokenLogprob(
            token=token,
            text=self._text(token),
            raw=self._vocabulary.piece(token),
            logprob=float(values[token]),
            top=[self._entry(values, other) for other in _likeliest(values, top)],
        )

    def _entry(self, values: NDArray[np.float32], token: int) -> tuple[int, str, bytes, float]:
        return token, self._text(token), self._vocabulary.piece(token), float(values[token])

    def _text(self, token: int) -> str:
        return self._vocabulary.piece(token).decode(errors="replace")


def _likeliest(values: NDArray[np.float32], top: int) -> list[int]:
    if top == 0:
        return []
    found = np.argpartition(values, -top)[-top:]
    return [int(token) for token in found[np.argsort(-values[found], kind="stable")]]
