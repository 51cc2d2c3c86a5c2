from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from support.placements import Problem, problems

from actors.eplb import metrics
from actors.eplb.moves import Move, moves
from actors.eplb.policy import POLICIES, propose
from actors.eplb.problem import Budget, Placement, Topology


def one_layer(old: list[int], new: list[int], nodes: tuple[int, ...]) -> list[Move]:
    return moves(np.array([old], np.int32), np.array([new], np.int32), Topology(nodes))[0]


@settings(max_examples=200, deadline=None)
@given(problem=problems())
def test_moves_make_the_new_placement_of_the_old_one(problem: Problem) -> None:
    new = propose(POLICIES["greedy"], problem.placement, problem.loads, problem.topology, Budget()).placement
    planned = moves(problem.placement, new, problem.topology)
    assert (carried_out(problem.placement, planned) == new).all()
    for before, after, layer in zip(problem.placement, new, planned, strict=True):
        assert [move.slot for move in layer] == np.flatnonzero(before != after).tolist()


@settings(max_examples=200, deadline=None)
@given(problem=problems())
def test_a_rank_receives_only_what_it_does_not_hold(problem: Problem) -> None:
    new = propose(POLICIES["greedy"], problem.placement, problem.loads, problem.topology, Budget()).placement
    ranks, size = problem.topology.ranks, new.shape[1] // problem.topology.ranks
    arriving = np.zeros((len(new), ranks), int)
    for layer, planned in enumerate(moves(problem.placement, new, problem.topology)):
        from_others = {(m.slot // size, m.expert) for m in planned if m.source // size != m.slot // size}
        for rank, _ in from_others:
            arriving[layer, rank] += 1
    expected = metrics.received(problem.placement, new, problem.experts, ranks)
    assert (arriving == expected).all()


def carried_out(old: Placement, planned: list[list[Move]]) -> Placement:
    """Every source is read before any slot is written, as staging does."""
    new = old.copy()
    for layer, of_layer in enumerate(planned):
        for move in of_layer:
            assert old[layer, move.source] == move.expert
            new[layer, move.slot] = old[layer, move.source]
    return new


def test_a_copy_of_the_rank_itself_comes_first() -> None:
    assert one_layer([0, 1, 0, 2], [0, 0, 1, 2], (0, 1)) == [Move(1, 0, 0), Move(2, 1, 1)]


def test_a_copy_of_the_same_node_comes_before_others() -> None:
    assert one_layer([0, 1, 2, 0, 3, 4], [0, 1, 2, 0, 0, 4], (0, 1, 1)) == [Move(4, 0, 3)]


def test_senders_take_turns_over_all_layers() -> None:
    old = np.tile(np.array([0, 1, 0, 1, 2, 3], np.int32), (4, 1))
    new = np.tile(np.array([0, 1, 0, 1, 0, 2], np.int32), (4, 1))
    planned = moves(old, new, Topology((0, 0, 0)))
    assert [layer[0].source for layer in planned] == [0, 2, 0, 2]


def test_nothing_changes_where_nothing_does() -> None:
    assert one_layer([0, 1, 2, 0], [0, 1, 2, 0], (0, 0)) == []
