"""Load windows: what all ranks counted, gathered when the interval is over.

That is the one collective which balancing adds to computing.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, cast

import torch

from engines.contract import LoadWindow
from engines.torch.eplb.recorder import LoadRecorder
from engines.torch.group import TorchGroup
from engines.torch.passes import Compute, Pass

_PASSES = 2
"""Of a step, at most: no more windows close in it. Only rank 0 takes them."""


class LoadWindows:
    """Closes windows in step on all ranks: each makes the same passes, so nothing has to be agreed."""

    def __init__(self, group: TorchGroup, recorder: LoadRecorder) -> None:
        self._group = group
        self._recorder = recorder
        self._epoch = 0
        self._number = 0
        self._seconds = 0.0
        self._closed: deque[LoadWindow] = deque(maxlen=_PASSES)

    def restart(self, epoch: int) -> None:
        """Begin a new interval: what was counted under another placement is void."""
        self._epoch = epoch
        self._seconds = 0.0
        self._closed.clear()
        self._recorder.reset()

    def counted(self, compute: Compute) -> Compute:
        """``compute`` whose passes belong to windows. Raises `GroupLost` where one closes without a rank."""

        def computed(passed: Pass) -> torch.Tensor:
            steps, began = self._recorder.steps, time.perf_counter()
            self._recorder.begin(prefill=passed.is_prefill, tokens=passed.n_tokens)
            logits = compute(passed)
            if self._recorder.steps > steps:
                self._group.synchronize()
                self._seconds += time.perf_counter() - began
            if self._recorder.due:
                self._close()
            return logits

        return computed

    def take(self) -> LoadWindow | None:
        """The oldest of those that have closed and were not taken yet."""
        return self._closed.popleft() if self._closed else None

    def _close(self) -> None:
        window = self._recorder.take()
        ranks = self._group.gather(torch.as_tensor(window.counts))  # (R, L, S)
        counts = cast("Any", ranks.transpose(0, 1).flatten(1)).tolist()  # (L, P): slots are numbered by rank
        self._number += 1
        self._closed.append(
            LoadWindow(
                window=self._number,
                epoch=self._epoch,
                steps=window.steps,
                tokens=window.tokens,
                seconds=self._seconds,
                bandwidth=self._group.bandwidth,
                counts=counts,
            )
        )
        self._seconds = 0.0
