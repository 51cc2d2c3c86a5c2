from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.drift import Drift, Shape, fitting, windows

from actors.eplb import metrics
from actors.eplb.gate import Gate, Window
from actors.eplb.policy import POLICIES
from actors.eplb.problem import Budget
from actors.eplb.what_if import Logged, Step, mean_balance, what_if

SHAPE = Shape(4, 24, 32, 8)
WINDOW = Window(tokens=1000, seconds=10, row_s=1e-5, bandwidth=1e9)
BUDGET = Budget(expert_bytes=1000)
LOGGED = [Logged(loads, WINDOW) for loads in windows(SHAPE, Drift(), 12)]
START = fitting(SHAPE, LOGGED[0].loads)


def steps(policy: str, gate: Gate | None = None, logged: list[Logged] = LOGGED) -> list[Step]:
    return list(what_if(logged, START, POLICIES[policy], SHAPE.topology, BUDGET, gate))


def test_each_window_is_seen_under_what_was_decided_before_it() -> None:
    placement = START
    for logged, step in zip(LOGGED, steps("movement"), strict=True):
        assert step.balance == metrics.balance(metrics.rank_loads(placement, logged.loads, SHAPE.ranks))
        arriving = metrics.received(placement, step.placement, SHAPE.experts, SHAPE.ranks)
        assert step.moved == arriving.sum()
        assert step.bytes_busiest == arriving.sum(axis=0).max() * 1000
        placement = step.placement


def test_the_static_policy_moves_nothing_and_others_do_better() -> None:
    static, greedy, movement = (steps(name) for name in ("static", "greedy", "movement"))
    assert all((step.placement == START).all() and step.bytes_total == 0 for step in static)
    assert mean_balance(static) < mean_balance(movement)
    assert mean_balance(static) < mean_balance(greedy)
    assert sum(step.bytes_total for step in movement) < sum(step.bytes_total for step in greedy) / 3


def test_the_gate_has_its_say() -> None:
    gate = Gate(horizon_s=600)
    told = steps("movement", gate)
    assert any(step.verdict and step.verdict.adopted for step in told)
    refused = steps("movement", replace(gate, min_tokens=1001))
    assert all((step.placement == START).all() and step.moved == 0 for step in refused)
    assert all(step.verdict and "1000 tokens" in step.verdict.reason for step in refused)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_under_a_constant_load_only_the_first_window_moves_anything(policy: str) -> None:
    told = steps(policy, logged=[LOGGED[5]] * 4)
    assert [step.moved for step in told[1:]] == [0, 0, 0]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_idle_windows_move_nothing(policy: str) -> None:
    told = steps(policy, logged=[Logged(np.zeros_like(LOGGED[0].loads), WINDOW)] * 3)
    assert [step.moved for step in told] == [0, 0, 0]
