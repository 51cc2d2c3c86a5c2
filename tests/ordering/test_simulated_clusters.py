"""Clusters of real actors with all that can go wrong. `python -m support.sim --seeds A:B` runs more."""

from __future__ import annotations

import logging
import threading

import pytest
from support.sim.mutants import MUTANTS, Mutant
from support.sim.run import Bias, Outcome, simulate

from events import ids

A_FEW = [range(first, first + 10) for first in range(0, 200, 10)]
MANY = [range(first, first + 100) for first in range(1000, 2000, 100)]


def _name(seeds: range) -> str:
    return f"{seeds.start}:{seeds.stop}"


def _run(seeds: range) -> None:
    for seed in seeds:
        try:
            simulate(seed)
        except Exception as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


@pytest.mark.parametrize("seeds", A_FEW, ids=_name)
def test_nothing_breaks(seeds: range) -> None:
    _run(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MANY, ids=_name)
def test_nothing_breaks_in_many_more(seeds: range) -> None:
    _run(seeds)


def _is_found(mutant: Mutant, seed: int) -> bool:
    """A bug may also show as an error of what is told of it."""
    try:
        with mutant.planted():
            simulate(seed, mutant.bias)
    except Exception:
        return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert any(_is_found(MUTANTS[name], seed) for seed in range(MUTANTS[name].seeds))


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.bias != Bias()])
def test_what_makes_a_bug_likely_breaks_nothing_without_it(name: str) -> None:
    for seed in range(200, 202):
        simulate(seed, MUTANTS[name].bias)


def test_a_seed_makes_the_same_run_again() -> None:
    outcomes = {simulate(7) for _ in range(2)}
    assert len(outcomes) == 1


def test_what_other_threads_do_makes_no_other_run() -> None:
    """In a long test session nodes may be left behind, which draw ids and log errors."""
    ended = threading.Event()

    def be_left_behind() -> None:
        while not ended.wait(0.001):
            ids.fresh("report")
            logging.getLogger("cuebook.node").error("The disk of a real node is full")

    thread = threading.Thread(target=be_left_behind)
    alone = simulate(7)
    thread.start()
    try:
        assert simulate(7) == alone
    finally:
        ended.set()
        thread.join()


def test_the_runs_are_worth_something() -> None:
    """Commands are served, branches lost and masters changed in them: else nothing could break."""
    outcomes: list[Outcome] = [simulate(seed) for seed in range(10)]
    assert all(outcome.decisions > 50 for outcome in outcomes)
    assert sum(outcome.epochs for outcome in outcomes) > 20
    assert sum(outcome.rejected for outcome in outcomes) > 50
    assert sum(outcome.answered for outcome in outcomes) > 0.9 * sum(outcome.sent for outcome in outcomes)
