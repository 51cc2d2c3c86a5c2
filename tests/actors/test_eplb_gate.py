from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from support.placements import Problem, problems

from actors.eplb.gate import Gate, Verdict, Window, judge, row_seconds
from actors.eplb.policy import POLICIES, only, propose
from actors.eplb.problem import Budget, Topology

RANKS = Topology((0, 0))
BUDGET = Budget(expert_bytes=1000)
OLD = np.array([[0, 1, 2, 3], [0, 1, 2, 3]], np.int32)
NEW = np.array([[0, 3, 2, 1], [0, 3, 2, 1]], np.int32)
LOADS = np.array([[50.0, 50, 10, 10], [31, 31, 29, 29]])
"""The swap saves 40 rows in layer 0 and 2 in layer 1; each rank receives an expert a layer."""
GATE = Gate(min_tokens=10, horizon_s=100)
WINDOW = Window(tokens=10, seconds=10, row_s=0.001, bandwidth=10_000, layer_s=0.05)


def verdict(gate: Gate = GATE, window: Window = WINDOW, loads: np.ndarray = LOADS) -> Verdict:
    proposal = only(OLD, NEW, np.array([True, True]), loads, RANKS, BUDGET)
    return judge(OLD, proposal, loads, RANKS, BUDGET, gate=gate, window=window)


def test_a_layer_that_pays_is_moved_and_one_that_does_not_is_dropped() -> None:
    """40 rows a window are 0.004 s a second, 0.4 s over the horizon; a layer costs 0.1 s + 0.05 s."""
    told = verdict()
    assert told.adopted
    assert told.layers == 1
    assert told.proposal.placement.tolist() == [NEW[0].tolist(), OLD[1].tolist()]
    assert told.saving_s == pytest.approx(0.4)
    assert told.cost_s == pytest.approx(0.15)
    assert (told.proposal.moved, told.proposal.bytes_total, told.proposal.bytes_busiest) == (2, 2000, 1000)
    assert told.proposal.predicted == pytest.approx(120 / 122)
    assert told.reason == (
        "moving 2 experts in 1 layer takes 0.15 s and saves 0.4 s over 100 s: balance goes from 0.741 to "
        "0.984, where 1.000 can't be exceeded; 1 more would cost more than they save"
    )


def test_with_time_enough_every_layer_pays() -> None:
    told = verdict(replace(GATE, horizon_s=10_000))
    assert told.layers == 2
    assert (told.proposal.placement == NEW).all()
    assert "more would cost" not in told.reason


@pytest.mark.parametrize(
    ("gate", "window", "says"),
    [
        (replace(GATE, min_tokens=11), WINDOW, "the window saw 10 tokens, and a decision needs 11"),
        (replace(GATE, horizon_s=30), WINDOW, "no layer saves what its move costs: 0.126 s over 30 s"),
        (GATE, replace(WINDOW, bandwidth=1000), "against 2.1 s for 4 experts"),
        (GATE, replace(WINDOW, bandwidth=0), "how fast ranks receive experts is not known yet"),
        (GATE, replace(WINDOW, layer_s=1), "no layer saves"),
        (GATE, replace(WINDOW, row_s=0), "no layer saves"),
        (replace(GATE, near_bound=0.7), WINDOW, "at least 0.7 of the 1.000 that no placement can exceed"),
    ],
)
def test_what_does_not_pay_is_not_adopted_and_says_why(gate: Gate, window: Window, says: str) -> None:
    told = verdict(gate, window)
    assert not told.adopted
    assert says in told.reason
    assert (told.proposal.placement == NEW).all()
    assert told.layers == 2


def test_a_policy_without_an_idea_is_told_so() -> None:
    proposal = propose(POLICIES["static"], OLD, LOADS, RANKS, BUDGET)
    told = judge(OLD, proposal, LOADS, RANKS, BUDGET, gate=GATE, window=WINDOW)
    assert not told.adopted
    assert told.reason == "the policy has nothing better than what is there, at a balance of 0.741"
    assert (told.layers, told.saving_s, told.cost_s) == (0, 0, 0)


def test_near_is_meant_of_what_can_be_reached() -> None:
    """One expert has nearly all: a balance of 0.52 is the best that one slot for it can give."""
    loads = np.array([[100.0, 2, 1, 1], [100, 2, 1, 1]])
    told = verdict(loads=loads)
    assert not told.adopted
    assert told.reason.startswith("balance is 0.510, at least 0.98 of the 0.520")


def test_a_row_costs_at_most_the_time_of_the_window_by_its_hottest_rows() -> None:
    assert row_seconds(np.array([[30.0, 10], [10, 20]]), seconds=5) == pytest.approx(0.1)
    assert row_seconds(np.zeros((2, 2)), seconds=5) == 0


@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_what_is_adopted_saves_more_than_it_costs(problem: Problem) -> None:
    proposal = propose(POLICIES["movement"], problem.placement, problem.loads, problem.topology, BUDGET)
    told = judge(
        problem.placement, proposal, problem.loads, problem.topology, BUDGET, gate=GATE, window=WINDOW
    )
    changed = (told.proposal.placement != problem.placement).any(axis=1)
    assert told.layers == changed.sum()
    if told.adopted:
        assert told.saving_s > told.cost_s > 0
        assert told.proposal.predicted > told.proposal.now
    assert told.reason
