"""What the experts of this rank really computed: rows by slot, in windows of forward passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engines.torch.experts.facts import BatchFacts
from events.experts import EplbSettings


@dataclass(frozen=True, slots=True)
class Window:
    """A closed window. ``counts`` int64 [L, S] are rows of this rank's slots, of ``tokens`` real tokens."""

    steps: int
    """Forward passes that counted."""
    tokens: int
    counts: NDArray[np.int64]


class LoadRecorder:
    """Counts in the last ``window`` of every ``interval`` forward passes, those of the phase that is asked
    for.

    Passes of the other phase move the clock and nothing else. All ranks make the same calls, so that their
    clocks agree.
    """

    def __init__(
        self, facts: BatchFacts, settings: EplbSettings, layers: int, slots: int, device: torch.device
    ) -> None:
        self._facts = facts
        self._settings = settings
        self.counts = torch.zeros(layers, slots, dtype=torch.int64, device=device)
        """Of the window that is open."""
        self.clock = 0
        """Forward passes since the last window closed."""
        self.steps = 0
        """Of the window that is open, those that counted."""
        self.tokens = 0
        """Of the steps."""

    def begin(self, *, prefill: bool, tokens: int) -> None:
        """A forward pass over this many real tokens begins; ``prefill`` where any of them is of a prompt."""
        self.clock += 1
        in_window = self.clock > self._settings.interval - self._settings.window
        counts = in_window and self._settings.phase in ("all", "prefill" if prefill else "decode")
        self._facts.loads = self.counts if counts else None
        if counts:
            self.steps += 1
            self.tokens += tokens

    @property
    def due(self) -> bool:
        """True where the interval is over: `take`."""
        return self.clock >= self._settings.interval

    def take(self) -> Window:
        """Close the window and begin the next interval. Waits for the device."""
        window = Window(self.steps, self.tokens, self.counts.cpu().numpy().copy())
        self.reset()
        return window

    def reset(self) -> None:
        """Forget what was counted and begin an interval: what was seen under another map is worth nothing."""
        self.counts.zero_()
        self.clock = self.steps = self.tokens = 0
        self._facts.loads = None
