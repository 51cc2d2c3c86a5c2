"""Invariant 5 of the balancer, and the ground of all others: sharded experts compute what whole ones do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from support.expert_moves import random_map  # noqa: E402
from support.expert_ranks import ExpertRanks, after_maps  # noqa: E402
from support.tiny_moe import (  # noqa: E402
    EXPERTS,
    FAMILIES,
    MOE_LAYERS,
    logits,
    reference,
    some_tokens,
)

from engines.contract import ExpertShard  # noqa: E402
from events.experts import EplbSettings  # noqa: E402

REDUNDANT = {1: 2, 2: 4, 3: 3}
TOLERANCE = 5e-4
"""Of logits of size 1 to 100, in float32."""


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_unsharded_reference_in_every_epoch(
    expert_ranks: ExpertRanks, tiny_moes: dict[str, Path], family: str, world: int
) -> None:
    tokens = some_tokens(2, 5)
    chance = random.Random(world)
    slots = EXPERTS + REDUNDANT[world]
    histories = [
        [random_map(chance, EXPERTS, slots, world) for _ in range(MOE_LAYERS[family])] for _ in range(2)
    ]
    settings = EplbSettings(redundant_experts=REDUNDANT[world])
    for format in ("plain", "int8"):
        wanted = logits(reference(tiny_moes[family], format), tokens).numpy()
        for dispatch in ("shared", "all_to_all"):
            shard = ExpertShard(dispatch=dispatch, format=format, slots=slots, eplb=settings)
            answers = expert_ranks.run(world, after_maps, tiny_moes[family], shard, tokens.numpy(), histories)
            for found, _ in answers:
                for epoch, one in enumerate(found):
                    np.testing.assert_allclose(
                        one, wanted, rtol=0, atol=TOLERANCE, err_msg=f"{format} {dispatch} epoch {epoch}"
                    )


@pytest.mark.parametrize("dispatch", ["shared", "all_to_all"])
def test_without_a_balancer_logits_equal_the_reference_too(
    expert_ranks: ExpertRanks, tiny_moes: dict[str, Path], dispatch: Any
) -> None:
    tokens = some_tokens(1, 7)
    for family in FAMILIES:
        wanted = logits(reference(tiny_moes[family], "plain"), tokens).numpy()
        shard = ExpertShard(dispatch=dispatch, format="plain", slots=EXPERTS)
        for found, _ in expert_ranks.run(3, after_maps, tiny_moes[family], shard, tokens.numpy(), []):
            np.testing.assert_allclose(found[0], wanted, rtol=0, atol=TOLERANCE)


def test_a_slot_with_the_wrong_expert_shows(expert_ranks: ExpertRanks, tiny_moes: dict[str, Path]) -> None:
    """The tolerance above is worth something."""
    tokens = some_tokens(2, 5)
    wanted = logits(reference(tiny_moes["mixtral"], "plain"), tokens).numpy()
    shard = ExpertShard(dispatch="shared", format="plain", slots=EXPERTS)
    [found] = expert_ranks.run(1, _with_swapped, tiny_moes["mixtral"], shard, tokens.numpy())
    assert np.abs(found - wanted).max() > 100 * TOLERANCE


def _with_swapped(rank: Any, path: Path, shard: ExpertShard, tokens: Any) -> Any:
    from support.expert_ranks import forward, load

    from engines.torch.loading import Checkpoint

    model, parallel = load(rank, path, shard)
    with Checkpoint(path) as checkpoint:
        parallel.reload(parallel.layers[0], 0, 1, checkpoint)
    return forward(model, parallel, torch.from_numpy(tokens)).numpy()
