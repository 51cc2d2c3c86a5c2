"""What the movement policy is for: most of greedy's gain for few of its bytes. The benchmark has the rest."""

from __future__ import annotations

import pytest
from support.balancing import Run, kept, run
from support.drift import Drift, Shape

WINDOWS = 16


def runs(shape: Shape, drift: Drift) -> tuple[Run, Run, Run]:
    static, greedy, movement = (run(name, shape, drift, WINDOWS) for name in ("static", "greedy", "movement"))
    return static, greedy, movement


@pytest.mark.parametrize(
    "shape", [Shape(58, 256, 288, 32), Shape(48, 128, 160, 8), Shape(94, 128, 144, 16)], ids=str
)
def test_nearly_all_of_the_gain_for_a_tenth_of_the_bytes(shape: Shape) -> None:
    static, greedy, movement = runs(shape, Drift())
    assert kept(static, greedy, movement) > 0.95
    assert movement.bytes_total < 0.1 * greedy.bytes_total
    assert movement.bytes_busiest < 0.2 * greedy.bytes_busiest


def test_loads_that_drift_fast_cost_no_more_than_a_tenth_either() -> None:
    static, greedy, movement = runs(Shape(58, 256, 288, 32), Drift(retention=0.8))
    assert kept(static, greedy, movement) > 0.95
    assert movement.bytes_total < 0.105 * greedy.bytes_total


def test_two_slots_a_rank_leave_less_to_choose_from() -> None:
    static, greedy, movement = runs(Shape(24, 256, 288, 144), Drift())
    assert kept(static, greedy, movement) > 0.85
    assert movement.bytes_total < 0.12 * greedy.bytes_total


def test_noise_alone_moves_next_to_nothing_and_costs_no_balance() -> None:
    static, greedy, movement = runs(Shape(24, 256, 288, 32), Drift(retention=1))
    assert movement.moved < 0.01 * greedy.moved
    assert movement.balance > 0.99 * static.balance
