"""Expert loads that drift from window to window, and the shapes that balancing them is measured on.

The log of an expert's load is an Ornstein-Uhlenbeck process, ``retention`` of it left after a window, around
an even mean; a window is the mean of 64 steps with noise of their own. Made up, and no trace of real traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from actors.eplb.greedy import rearrange
from actors.eplb.problem import Budget, Loads, Placement, Topology

ROWS = 4096
"""Rows that an expert computes in a window, on the mean."""
STEPS = 64
STEP_NOISE = 0.3


@dataclass(frozen=True)
class Shape:
    layers: int
    experts: int
    slots: int
    ranks: int

    def __str__(self) -> str:
        return f"{self.layers}/{self.experts}/{self.slots} on {self.ranks} ranks"

    @property
    def topology(self) -> Topology:
        return Topology((0,) * self.ranks)


@dataclass(frozen=True)
class Drift:
    """How loads are spread at any time, and how they move."""

    retention: float = 0.95
    zipf: float = 0.0
    """Exponent of a Zipf distribution in random order at the beginning; 0 for a lognormal one of sigma 1."""

    def __str__(self) -> str:
        spread = f"zipf {self.zipf:g}" if self.zipf else "lognormal"
        return f"{spread}, {'stationary' if self.retention == 1 else f'retention {self.retention:g}'}"


def windows(shape: Shape, drift: Drift, n: int, seed: int = 1) -> Iterator[Loads]:
    """``n`` windows of loads ``[L, E]``, in whole rows, every layer with about the same total."""
    rng = np.random.default_rng(seed)
    deviation = _beginning(shape, drift, rng)
    sd = deviation.std()
    for _ in range(n):
        noise = np.exp(rng.normal(0, STEP_NOISE, (STEPS, *deviation.shape))).mean(axis=0)
        load = np.exp(deviation) * noise
        yield np.rint(load / load.sum(axis=1, keepdims=True) * ROWS * shape.experts)
        fresh = rng.normal(0, sd, deviation.shape)
        deviation = drift.retention * deviation + np.sqrt(1 - drift.retention**2) * fresh


def _beginning(shape: Shape, drift: Drift, rng: np.random.Generator) -> Loads:
    if not drift.zipf:
        return rng.normal(0, 1, (shape.layers, shape.experts))
    ordered = -drift.zipf * np.log(np.arange(1, shape.experts + 1))
    return rng.permuted(np.tile(ordered - ordered.mean(), (shape.layers, 1)), axis=1)


def even(shape: Shape) -> Placement:
    """Experts one after the other, and again from the first for the redundant slots."""
    return np.tile((np.arange(shape.slots) % shape.experts).astype(np.int32), (shape.layers, 1))


def fitting(shape: Shape, loads: Loads) -> Placement:
    """The greedy placement for these loads: what all policies begin with."""
    return rearrange(even(shape), loads, shape.topology, Budget())
