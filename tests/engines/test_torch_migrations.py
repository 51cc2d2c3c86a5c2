"""Logits while experts move: those of the whole model on one rank, after any number of migrations."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.expert_moves import balanced_shard, moves_to, random_map  # noqa: E402
from support.tiny import tiny_model_dir  # noqa: E402
from support.torch_ranks import load_spec, run  # noqa: E402
from support.upcycled import upcycle  # noqa: E402

from engines.contract import ExpertShard  # noqa: E402
from engines.torch.builder import TorchBuilder  # noqa: E402
from engines.torch.eplb.balanced import Balance  # noqa: E402
from engines.torch.expert_builder import ExpertBuilder  # noqa: E402
from engines.torch.experts.parallel import ExpertParallel  # noqa: E402
from engines.torch.group import TorchGroup  # noqa: E402
from engines.torch.passes import Compute, Pass  # noqa: E402
from events.experts import ExpertDispatch, ExpertFormat  # noqa: E402

LAYERS, EXPERTS = 3, 6
PROMPT = [7 * n % 400 for n in range(29)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dense = tiny_model_dir(tmp_path_factory.mktemp("dense"), layers=LAYERS)
    return upcycle(dense, tmp_path_factory.mktemp("noisy"), experts=EXPERTS, noise=0.5)


class Whole(TorchBuilder):
    """All experts of a model in one process, in a format."""

    def __init__(self, path: Path, form: ExpertFormat) -> None:
        super().__init__(load_spec(path))
        shard = ExpertShard(dispatch="shared", format=form, slots=EXPERTS)
        self.parallel = ExpertParallel(
            shard, rank=0, world=1, group=None, dtype=torch.float32, device=self.device
        )

    def prepare(self, model: Any) -> Collection[str]:
        return self.parallel.prepare(model)

    def fill(self, model: Any, checkpoint: Any, progress: Callable[[int, int], None]) -> list[str]:
        self.parallel.read(checkpoint, progress)
        return []


@torch.inference_mode()
def logits(compute: Compute, parallel: ExpertParallel) -> np.ndarray:
    """Of a prompt's end and of one token after it."""
    found = []
    for start, tokens in ((0, PROMPT), (len(PROMPT), [11])):
        end = start + len(tokens)
        work = Pass(
            tokens=torch.tensor([tokens]),
            positions=torch.arange(start, end)[None],
            uids=[3],
            first_slot=0,
            end=end,
            is_prefill=not start,
        )
        parallel.facts.begin(work.positions, work.uids)
        found.append(compute(work))
    return torch.cat(found).numpy()


def _migrate(group: TorchGroup, pipe: Connection, path: str, shard: ExpertShard, rounds: int) -> Any:
    builder = ExpertBuilder(load_spec(Path(path), experts=shard), group)
    builder.load(lambda done, total: None)
    parallel = builder._parallel
    assert shard.eplb is not None
    movement = Balance(group, parallel, shard.eplb).movement
    lookups = [adapter.lookup for adapter in parallel.adapters]
    chance = random.Random(11)
    found = [logits(builder.model, parallel)]
    ticket = 0
    for n in range(rounds):
        layer = parallel.layers[n % LAYERS]
        new = random_map(chance, EXPERTS, shard.slots, group.world)
        moves = moves_to(layer.number, layer.map, new)
        live = [adapter.live().tobytes() for adapter in parallel.adapters]
        if n % 5 == 0:  # an abort first
            movement.stage(ticket + 1, moves)
            assert np.array_equal(logits(builder.model, parallel), found[-1])
            movement.drop(ticket + 2)
            ticket += 2
        movement.stage(ticket + 1, moves)
        assert np.array_equal(logits(builder.model, parallel), found[-1])
        assert [adapter.live().tobytes() for adapter in parallel.adapters] == live
        movement.apply(ticket + 2, layer.number, new)
        ticket += 2
        assert all(a.lookup is lookup for a, lookup in zip(parallel.adapters, lookups, strict=True))
        changed = [
            number
            for number, adapter in enumerate(parallel.adapters)
            if adapter.live().tobytes() != live[number]
        ]
        assert changed == [layer.number]
        found.append(logits(builder.model, parallel))
    return found


def _compare(model: Path, world: int, shard: ExpertShard, rounds: int) -> None:
    whole = Whole(model, shard.format)
    whole.load(lambda done, total: None)
    expected = logits(whole.model, whole.parallel)
    found = run(world, _migrate, str(model), shard, rounds)
    for answer in found:
        assert not isinstance(answer, str), answer
        assert len(answer) == rounds + 1
        for one in answer:
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)
    if shard.format == "plain":
        plain = TorchBuilder(load_spec(model))
        plain.load(lambda done, total: None)
        np.testing.assert_allclose(expected, logits(plain.model, whole.parallel), rtol=1e-4, atol=1e-4)


def test_logits_after_each_migration(model: Path) -> None:
    shard = balanced_shard(LAYERS, EXPERTS, 2, redundant=4, format="int8", dispatch="all_to_all")
    _compare(model, 2, shard, 12)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("dispatch", ["shared", "all_to_all"])
@pytest.mark.parametrize("form", ["plain", "int8"])
def test_logits_after_each_of_50_migrations(
    model: Path, world: int, dispatch: ExpertDispatch, form: ExpertFormat
) -> None:
    shard = balanced_shard(LAYERS, EXPERTS, world, redundant=6, format=form, dispatch=dispatch)
    _compare(model, world, shard, 50)
