"""Log probabilities of drawn tokens, read only for the tasks that asked for them."""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engines.contract import TokenLogprob
from engines.text import Vocabulary


class LogprobReader:
    """Reads rows of log probabilities (of the model, before temperature).

    Rows are already computed; they are read as numpy views. A row that must be cast first is cast on a
    stream of its own, so that it does not queue behind the decode step that is under way.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._stream = mx.new_stream(mx.default_device())

    def read(self, token: int, row: mx.array, top: int) -> TokenLogprob:
        """The drawn token's entry, with the ``top`` likeliest at its place."""
        values = self._values(row)
        return TokenLogprob(
            token=token,
            text=self._text(token),
            raw=self._vocabulary.piece(token),
            logprob=float(values[token]),
            top=[self._entry(values, other) for other in _likeliest(values, top)],
        )

    def _values(self, row: mx.array) -> NDArray[np.float32]:
        if row.dtype != mx.float32:
            row = row.astype(mx.float32, stream=self._stream)
        return cast("NDArray[np.float32]", np.array(row, copy=False))

    def _entry(self, values: NDArray[np.float32], token: int) -> tuple[int, str, bytes, float]:
        return token, self._text(token), self._vocabulary.piece(token), float(values[token])

    def _text(self, token: int) -> str:
        return self._vocabulary.piece(token).decode(errors="replace")


def _likeliest(values: NDArray[np.float32], top: int) -> list[int]:
    if top == 0:
        return []
    found = np.argpartition(values, -top)[-top:]
    return [int(token) for token in found[np.argsort(-values[found], kind="stable")]]
