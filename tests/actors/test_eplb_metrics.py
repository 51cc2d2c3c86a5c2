from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.placements import Problem, problems

from actors.eplb import metrics

PLACEMENT = np.array([[0, 1, 2, 0], [0, 1, 2, 2]], np.int32)
LOADS = np.array([[60.0, 10, 30], [10, 50, 40]])
"""Two ranks of two slots: layer 0 has 30 + 10 and 30 + 30, layer 1 has 10 + 50 and 20 + 20."""


def test_golden_values() -> None:
    by_rank = metrics.rank_loads(PLACEMENT, LOADS, 2)
    assert by_rank.tolist() == [[40, 60], [60, 40]]
    assert metrics.replicas(PLACEMENT, 3).tolist() == [[2, 1, 1], [1, 1, 2]]
    assert metrics.balance(by_rank) == pytest.approx(100 / 120)
    assert metrics.ideal(LOADS, 4, 2).tolist() == [50, 50]
    assert metrics.bound(LOADS, 4, 2) == 1


def test_a_hot_rank_in_each_layer_is_not_hidden_by_another_one_in_the_next() -> None:
    """Over both layers the ranks have the same load, and each layer waits for its hot one all the same."""
    by_rank = np.array([[90.0, 10], [10, 90]])
    assert metrics.balance(by_rank) == pytest.approx(100 / 180)


def test_an_idle_instance_is_balanced() -> None:
    assert metrics.balance(np.zeros((2, 4))) == 1
    assert metrics.bound(np.zeros((2, 4)), 6, 2) == 1


def test_the_bound_is_what_the_hottest_expert_leaves() -> None:
    """One expert has all the load, and the other one a slot of the four, each a rank of its own."""
    assert metrics.bound(np.array([[90.0, 0]]), 4, 4) == pytest.approx(22.5 / 30)
    assert metrics.bound(np.array([[90.0]]), 4, 2) == 1


@settings(max_examples=100, deadline=None)
@given(problem=problems(), rest=st.integers(1, 5))
def test_replicas_make_the_hottest_one_as_cool_as_can_be(problem: Problem, rest: int) -> None:
    """Taking any slot back and giving it to any other expert makes the hottest replica no cooler."""
    loads, slots = problem.loads, problem.experts + rest
    counts = metrics.replicate(loads, slots, most=slots)
    assert (counts.sum(axis=1) == slots).all()
    hottest = (loads / counts).max(axis=1)
    for taken in range(problem.experts):
        for given_ in range(problem.experts):
            other = counts.copy()
            other[:, taken] -= 1
            other[:, given_] += 1
            allowed = other[:, taken] > 0
            assert ((loads / np.maximum(other, 1)).max(axis=1) >= hottest - 1e-9)[allowed].all()


def test_received_counts_what_a_rank_did_not_hold() -> None:
    new = np.array([[1, 0, 0, 2], [0, 2, 1, 1]], np.int32)
    assert metrics.received(PLACEMENT, new, 3, 2).tolist() == [[0, 0], [1, 1]]


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_rows_are_neither_lost_nor_made(problem: Problem) -> None:
    by_rank = metrics.rank_loads(problem.placement, problem.loads, problem.topology.ranks)
    assert by_rank.sum(axis=1) == pytest.approx(problem.loads.sum(axis=1))
