from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.drift import Drift, Shape, even, fitting, windows
from support.placements import Problem, coolest, doubles, problems

from actors.eplb import metrics
from actors.eplb.greedy import rearrange as greedy
from actors.eplb.policy import POLICIES, propose
from actors.eplb.problem import Budget, Malformed, Placement, Proposal, Topology

NAMES = sorted(POLICIES)
MOVING = ["greedy", "movement"]
A_BYTE = Budget(expert_bytes=1)
MIDDLE = Shape(6, 32, 40, 8)


def proposed(name: str, problem: Problem, budget: Budget = A_BYTE) -> Proposal:
    return propose(POLICIES[name], problem.placement, problem.loads, problem.topology, budget)


def hottest(placement: Placement, problem: Problem) -> np.ndarray:
    return metrics.rank_loads(placement, problem.loads, problem.topology.ranks).max(axis=1)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_every_proposal_is_whole_and_no_layer_is_worse_than_staying(name: str, problem: Problem) -> None:
    proposal = proposed(name, problem)
    placement = proposal.placement
    assert placement.dtype == np.int32
    assert placement.shape == problem.placement.shape
    assert (metrics.replicas(placement, problem.experts) >= 1).all()
    assert (hottest(placement, problem) <= hottest(problem.placement, problem)).all()
    assert proposal.now <= proposal.predicted <= proposal.bound + 1e-9


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_a_rank_never_gets_an_expert_twice_where_that_can_be_avoided(name: str, problem: Problem) -> None:
    ranks = problem.topology.ranks
    size = problem.placement.shape[1] // ranks
    assume(size <= problem.experts)
    placement = proposed(name, problem).placement
    for layer in np.flatnonzero((placement != problem.placement).any(axis=1)):
        assert doubles(placement[layer : layer + 1], ranks) == 0


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_what_was_proposed_needs_no_move_when_the_load_stays(name: str, problem: Problem) -> None:
    placement = proposed(name, problem).placement
    again = proposed(name, Problem(placement, problem.loads, problem.topology))
    assert (again.placement == placement).all()
    assert again.moved == again.bytes_total == 0


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=80, deadline=None)
@given(problem=problems(), load=st.sampled_from([0.0, 1.0, 7.0]))
def test_an_even_load_moves_nothing(name: str, problem: Problem, load: float) -> None:
    even_loads = np.full_like(problem.loads, load)
    proposal = proposed(name, Problem(problem.placement, even_loads, problem.topology))
    assert (proposal.placement == problem.placement).all()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=80, deadline=None)
@given(problem=problems(), seed=st.integers(0, 1000))
def test_layers_do_not_depend_on_each_other(name: str, problem: Problem, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(problem.loads))
    moved = Problem(problem.placement[order], problem.loads[order], problem.topology)
    assert (proposed(name, moved).placement == proposed(name, problem).placement[order]).all()


@pytest.mark.parametrize("name", MOVING)
@settings(max_examples=80, deadline=None)
@given(problem=problems(), seed=st.integers(0, 1000))
def test_experts_may_be_called_anything(name: str, problem: Problem, seed: int) -> None:
    """Where no two loads are alike, other names give the same balance. Ties go to the lower one."""
    assume(problem.topology.groups == 1)
    loads = problem.loads * 1000 + np.arange(problem.loads.size).reshape(problem.loads.shape)
    called = np.random.default_rng(seed).permutation(problem.experts)
    renamed = np.empty_like(loads)
    renamed[:, called] = loads
    one = proposed(name, Problem(problem.placement, loads, problem.topology))
    other = Problem(called[problem.placement].astype(np.int32), renamed, problem.topology)
    assert proposed(name, other).predicted == pytest.approx(one.predicted, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_the_arguments_are_left_alone_and_the_answer_is_the_same_again(name: str, problem: Problem) -> None:
    placement, loads = problem.placement.copy(), problem.loads.copy()
    first, second = proposed(name, problem), proposed(name, problem)
    assert (problem.placement == placement).all()
    assert (problem.loads == loads).all()
    assert (first.placement == second.placement).all()
    assert first.bytes_busiest == second.bytes_busiest


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(problem=problems(), most=st.integers(1, 4))
def test_the_busiest_rank_receives_no_more_than_the_budget(name: str, problem: Problem, most: int) -> None:
    proposal = proposed(name, problem, Budget(expert_bytes=10, max_bytes=10 * most + 9))
    ranks = problem.topology.ranks
    arriving = metrics.received(problem.placement, proposal.placement, problem.experts, ranks)
    assert proposal.bytes_busiest == 10 * arriving.sum(axis=0).max() <= 10 * most
    assert proposal.bytes_total == 10 * proposal.moved == 10 * arriving.sum()


@pytest.mark.parametrize("name", MOVING)
@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_an_expert_that_stays_on_its_rank_keeps_its_slot(name: str, problem: Problem) -> None:
    ranks = problem.topology.ranks
    new = proposed(name, problem).placement.reshape(len(problem.loads), ranks, -1)
    old = problem.placement.reshape(new.shape)
    for before, after in zip(old.reshape(-1, new.shape[2]), new.reshape(-1, new.shape[2]), strict=True):
        changed = before != after
        assert set(before[changed].tolist()).isdisjoint(after[changed].tolist()) or doubles(before[None], 1)


@settings(max_examples=60, deadline=None)
@given(problem=problems(most_layers=1, most_ranks=3, most_slots=2))
@example(
    Problem(np.array([[2, 0, 1, 2, 3, 1]], np.int32), np.array([[347.0, 10, 163, 14]]), Topology((0,) * 3))
)
def test_greedy_is_near_the_best_that_there_is(problem: Problem) -> None:
    """Longest first is at most 4/3 of the best where any rank can take anything. Here a rank has two slots,
    and an expert's third replica may find only the hottest one without it: x / 2 + x / 3, for x / 2 at best.
    """
    ranks, slots = problem.topology.ranks, problem.placement.shape[1]
    placement = greedy(problem.placement, problem.loads, Topology((0,) * ranks), A_BYTE)
    best = coolest(problem.loads[0], slots, ranks)
    assert best <= hottest(placement, problem)[0] + 1e-9
    assert hottest(placement, problem)[0] <= 5 / 3 * best + 1e-9


@settings(max_examples=60, deadline=None)
@given(problem=problems(most_layers=1, most_ranks=3, most_slots=2))
def test_no_placement_exceeds_the_bound(problem: Problem) -> None:
    ranks, slots = problem.topology.ranks, problem.placement.shape[1]
    best = coolest(problem.loads[0], slots, ranks)
    assert metrics.ideal(problem.loads, slots, ranks)[0] <= best + 1e-9


@pytest.mark.parametrize("name", MOVING)
def test_a_balance_near_the_bound_is_reached_at_once(name: str) -> None:
    loads = next(windows(MIDDLE, Drift(), 1))
    proposal = propose(POLICIES[name], even(MIDDLE), loads, MIDDLE.topology, A_BYTE)
    assert proposal.now < 0.6 * proposal.bound
    assert proposal.predicted > 0.9 * proposal.bound


def test_movement_gets_near_greedy_with_a_small_part_of_its_moves() -> None:
    first, second = windows(MIDDLE, Drift(0.99), 2)
    start = fitting(MIDDLE, first)
    few, all_ = (propose(POLICIES[n], start, second, MIDDLE.topology, A_BYTE) for n in ("movement", "greedy"))
    assert few.moved < 0.15 * all_.moved
    assert few.predicted > 0.93 * all_.predicted


def test_greedy_keeps_groups_on_nodes_where_they_divide() -> None:
    topology = Topology((0, 0, 1, 1), groups=4)
    loads = np.array([[9.0, 1, 1, 1, 1, 1, 1, 1]])
    placement = greedy(even(Shape(1, 8, 12, 4)), loads, topology, A_BYTE).reshape(2, 6)
    for node in placement:
        assert {expert // 2 for expert in node.tolist()} == {e // 2 for e in node.tolist() if e % 2 == 0}
    assert set(placement[0].tolist()).isdisjoint(placement[1].tolist())


def test_greedy_follows_the_example_of_its_description() -> None:
    """The hottest expert gets the spare slot, and the rest is packed longest first."""
    loads = np.array([[100.0, 60, 50, 40, 30, 20, 10]])
    placement = greedy(even(Shape(1, 7, 8, 2)), loads, Topology((0, 0)), A_BYTE)
    assert metrics.replicas(placement, 7)[0].tolist() == [2, 1, 1, 1, 1, 1, 1]
    assert metrics.rank_loads(placement, loads, 2).tolist() == [[160.0, 150.0]]


@pytest.mark.parametrize(
    ("placement", "loads", "nodes", "sentence"),
    [
        ([[0, 1, 0]], [[1.0, 1]], (0, 0), "3 slots can't be divided by 2 ranks"),
        ([[0, 0]], [[1.0, 1]], (0, 0), "expert 1 of layer 0 is in no slot"),
        ([[0, 2]], [[1.0, 1]], (0, 0), "outside of 0 to 1"),
        ([[0, 1, 2, 3, 4, 5]], [[1.0] * 6], (), "6 slots can't be divided by 0 ranks"),
        ([[0, 1]], [[1.0, 1, 1]], (0, 0), "no room for 3 experts"),
        ([[0, 1]], [[1.0, float("nan")]], (0, 0), "no number"),
        ([[0, 1]], [[1.0, -1]], (0, 0), "negative"),
        ([[0, 1]], [[1.0, 1], [1, 1]], (0, 0), "have the shape"),
        ([0, 1], [[1.0, 1], [1, 1]], (0, 0), "layers, slots"),
    ],
)
def test_what_does_not_fit_is_refused(
    placement: list[list[int]], loads: list[list[float]], nodes: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(Malformed, match=sentence):
        propose(POLICIES["greedy"], np.array(placement, np.int32), np.array(loads), Topology(nodes), Budget())
