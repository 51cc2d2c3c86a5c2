from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.experts import maps

SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 6), st.integers(1, 4)).map(
    lambda drawn: (drawn[0], drawn[1], -(-drawn[0] // drawn[1]) - 1 + drawn[2])
)
"""Experts, ranks, slots of each rank: enough for all experts."""


@given(SHAPES)
def test_the_first_placement_holds_every_expert_and_doubles_none_on_a_rank(
    shape: tuple[int, int, int],
) -> None:
    experts, ranks, per_rank = shape
    placed = maps.initial(experts, ranks * per_rank, ranks)
    maps.check(placed, experts, ranks)
    copies = maps.replicas(placed, experts)
    assert copies.max() - copies.min() <= 1
    if ranks * per_rank == experts:
        assert placed == list(range(experts))


@pytest.mark.parametrize(
    ("layer", "experts", "ranks", "words"),
    [
        ([0, 1, 2], 3, 2, "divided evenly"),
        ([], 3, 1, "divided evenly"),
        ([0, 1, 2, 3], 3, 2, "names expert 3"),
        ([0, 1, -1, 2], 3, 2, "names expert -1"),
        ([0, 1, 0, 1], 3, 2, "Expert 2 has no slot"),
        ([0, 1, 2, 2], 3, 2, "Rank 1 has expert 2 twice"),
    ],
)
def test_a_map_that_places_nothing_well_is_refused(
    layer: list[int], experts: int, ranks: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        maps.check(layer, experts, ranks)


def test_more_copies_than_ranks_may_share_one() -> None:
    maps.check([0, 0, 1, 0], 2, 2)


def test_too_few_slots_for_all_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="Expert 4 has no slot"):
        maps.initial(6, 4, 2)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.randoms())
def test_a_lookup_table_shares_tokens_evenly_between_all_copies(extra: list[int], chance: object) -> None:
    layer = [n for expert, more in enumerate(extra) for n in [expert] * (1 + more)]
    chance.shuffle(layer)  # type: ignore[attr-defined]
    table = maps.lookup_table(layer, len(extra))
    assert table.dtype == np.int32
    assert table.shape == (maps.ROWS, len(extra))
    assert (np.asarray(layer)[table] == np.arange(len(extra))).all()
    shares = np.bincount(table.ravel(), minlength=len(layer))
    for expert, more in enumerate(extra):
        mine = shares[np.asarray(layer) == expert]
        assert mine.max() - mine.min() <= 1
        assert more > 7 or mine.max() == mine.min()


def test_a_digest_tells_maps_and_tables_apart() -> None:
    layer, other = [0, 1, 2, 0], [0, 2, 1, 0]
    table = maps.lookup_table(layer, 3)
    first = maps.digest(layer, table)
    assert first == maps.digest(np.asarray(layer, dtype=np.int64), table.copy())
    assert first != maps.digest(other, table)
    table[-1, 2] = 0
    assert first != maps.digest(layer, table)
