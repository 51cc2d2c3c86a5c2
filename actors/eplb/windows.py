"""Load windows: from rows counted in physical slots to loads of experts and ranks, or a refusal.

A window belongs to one epoch, and is read with that epoch's own map: under another one, its rows would be
credited to experts that never computed them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.eplb.metrics import rows
from actors.eplb.problem import Loads, Placement
from actors.refusal import Rejected
from events.values import Cause


@dataclass(frozen=True)
class Counted:
    """A window as it was reported."""

    number: int
    epoch: int
    counts: Sequence[Sequence[float | None]]
    """``[L][P]``: rows computed in each physical slot; None where a number was none."""


@dataclass(frozen=True)
class Expected:
    """What a window is read by."""

    placement: Placement
    """The map of ``epoch``, ``[L, P]``."""
    experts: int
    ranks: int
    epoch: int
    after: int = 0
    """Number of the last window that was read."""


@dataclass(frozen=True)
class Window:
    """The load of a window."""

    experts: Loads
    """``[L, E]``: rows of each logical expert, in all its replicas."""
    ranks: Loads
    """``[L, R]``: rows that each rank computed."""


def read(counted: Counted, expected: Expected) -> Window:
    """The window's loads. Raises `Rejected` where it is repeated, of another epoch, or not a load at all."""
    _check_fresh(counted, expected)
    counts = _numbers(counted, expected.placement.shape)
    n_layers, n_slots = counts.shape
    experts = np.zeros((n_layers, expected.experts))
    np.add.at(experts, (rows(expected.placement), expected.placement), counts)
    return Window(experts, counts.reshape(n_layers, expected.ranks, n_slots // expected.ranks).sum(axis=2))


def _check_fresh(counted: Counted, expected: Expected) -> None:
    if counted.epoch != expected.epoch:
        raise _refused(
            "window_of_another_epoch",
            f"{_name(counted)} was counted under epoch {counted.epoch} of the experts' placement, "
            f"and {expected.epoch} is in force; the next window will be taken",
        )
    if counted.number <= expected.after:
        raise _refused(
            "window_repeated",
            f"{_name(counted)} came after window {expected.after}; numbers only grow",
        )


def _numbers(counted: Counted, shape: tuple[int, ...]) -> Loads:
    """The counts as an array, every one of them finite and none negative, with some load among them."""
    n_layers, n_slots = shape
    name = _name(counted)
    if len(counted.counts) != n_layers or any(len(each) != n_slots for each in counted.counts):
        got = sorted({len(each) for each in counted.counts})
        raise _refused(
            "window_shape",
            f"{name} has {len(counted.counts)} layers of {got} slots, not {n_layers} of {n_slots}",
        )
    counts = np.array(counted.counts, np.float64).reshape(shape)
    if (at := _first(~np.isfinite(counts))) is not None:
        raise _refused("window_not_a_number", f"{name} has no number for slot {at[1]} of layer {at[0]}")
    if (at := _first(counts < 0)) is not None:
        raise _refused(
            "window_negative", f"{name} counts {counts[at]:g} rows in slot {at[1]} of layer {at[0]}"
        )
    if not counts.any():
        raise _refused("window_empty", f"{name} counted no rows at all; the instance was idle")
    return counts


def _first(flags: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> tuple[int, int] | None:
    found = np.argwhere(flags)
    return (int(found[0][0]), int(found[0][1])) if len(found) else None


def _name(counted: Counted) -> str:
    return f"load window {counted.number}"


def _refused(code: str, message: str) -> Rejected:
    return Rejected(Cause(code=code, message=message))
