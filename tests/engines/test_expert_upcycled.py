"""A mixture whose experts are copies of one feed-forward says what the dense model says, however spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from support.expert_ranks import ExpertRanks, Rank, after_maps, forward, load  # noqa: E402
from support.upcycled import upcycle  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from engines.cards import card_from_directory  # noqa: E402
from engines.contract import ExpertShard  # noqa: E402
from engines.experts.families import moe_layers  # noqa: E402
from engines.torch.experts.layouts import LAYOUTS, blocks  # noqa: E402

TYPES = ["mixtral", "glm4_moe"]


def whole(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def logits(model: Any, tokens: Any) -> Any:
    with torch.inference_mode():
        return model(tokens).logits.numpy()


@pytest.mark.parametrize("model_type", TYPES)
def test_upcycled_experts_say_what_the_dense_model_says(
    expert_ranks: ExpertRanks, tiny: Path, tmp_path: Path, model_type: str
) -> None:
    path = upcycle(tiny, tmp_path / model_type, model_type=model_type)
    card = card_from_directory(path)
    assert card.n_experts == 6
    tokens = torch.arange(40).view(2, 20)
    wanted = logits(whole(tiny), tokens)
    np.testing.assert_allclose(logits(whole(path), tokens), wanted, atol=1e-3)
    for world in (1, 2, 3):
        for dispatch in ("shared", "all_to_all"):
            shard = ExpertShard(dispatch=dispatch, format="plain", slots=6)
            for found, _ in expert_ranks.run(world, after_maps, path, shard, tokens.numpy(), []):
                np.testing.assert_allclose(found[0], wanted, atol=1e-3)


@pytest.mark.parametrize("model_type", TYPES)
def test_with_noise_upcycled_experts_differ(tiny: Path, tmp_path: Path, model_type: str) -> None:
    path = upcycle(tiny, tmp_path / model_type, model_type=model_type, noise=0.1)
    tokens = torch.arange(40).view(2, 20)
    assert np.abs(logits(whole(path), tokens) - logits(whole(tiny), tokens)).max() > 0.1


def test_layers_with_experts_are_those_that_the_config_says(tiny_moes: dict[str, Path]) -> None:
    assert tiny_moes.keys() == LAYOUTS.keys()
    for path in tiny_moes.values():
        model = whole(path)
        config = model.config.to_dict()
        assert len(blocks(model)) == moe_layers(config, model.config.num_hidden_layers)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("model_type", TYPES)
def test_upcycled_smollm2_writes_the_dense_models_text(
    expert_ranks: ExpertRanks, smollm2: Path, tmp_path: Path, model_type: str
) -> None:
    path = upcycle(smollm2, tmp_path / model_type, model_type=model_type, experts=4)
    tokenizer = AutoTokenizer.from_pretrained(path)
    asked = tokenizer("The capital of France is", return_tensors="pt").input_ids
    wanted = whole(smollm2).generate(asked, max_new_tokens=12, do_sample=False)[0].tolist()
    for world, dispatch in ((1, "shared"), (2, "shared"), (2, "all_to_all")):
        shard = ExpertShard(dispatch=dispatch, format="plain", slots=4)
        for written in expert_ranks.run(world, _written, path, shard, asked.numpy(), 12):
            assert written == wanted, tokenizer.decode(written)


def _written(rank: Rank, path: Path, shard: ExpertShard, asked: Any, n: int) -> list[int]:
    """The likeliest tokens, each by a pass over all before."""
    model, parallel = load(rank, path, shard)
    tokens = torch.from_numpy(asked)
    for _ in range(n):
        likeliest = forward(model, parallel, tokens)[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, likeliest], dim=1)
    return tokens[0].tolist()
