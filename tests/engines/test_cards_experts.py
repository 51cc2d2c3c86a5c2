"""What a card says of a model's experts: how many, in which layers, how wide."""

from __future__ import annotations

import pytest

from engines.cards import card_from_config
from engines.experts.families import FAMILIES, moe_layers
from engines.model_errors import CardError
from events.values import ModelCard

BASE: dict[str, object] = {
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
QWEN: dict[str, object] = {
    "num_experts": 60,
    "moe_intermediate_size": 1408,
    "intermediate_size": 5632,
    "shared_expert_intermediate_size": 5632,
}
GLM: dict[str, object] = {"n_routed_experts": 128, "moe_intermediate_size": 1408, "intermediate_size": 10944}


def card(model_type: str, **config: object) -> ModelCard:
    architecture = f"{model_type.title()}ForCausalLM"
    made = {**BASE, "architectures": [architecture], "model_type": model_type, **config}
    return card_from_config("m", made, weight_bytes=10**9, has_chat_template=True)


@pytest.mark.parametrize(
    ("model_type", "config", "expected"),
    [
        ("mixtral", {"num_local_experts": 8, "intermediate_size": 14336}, (8, 24, 14336)),
        ("olmoe", {"num_experts": 64, "intermediate_size": 1024}, (64, 24, 1024)),
        ("glm4_moe", {**GLM, "first_k_dense_replace": 3}, (128, 21, 1408)),
        ("glm4_moe", GLM, (128, 23, 1408)),
        ("glm4_moe", {**GLM, "first_k_dense_replace": 99}, (128, 0, 1408)),
        ("qwen2_moe", QWEN, (60, 24, 1408)),
        ("qwen2_moe", {**QWEN, "decoder_sparse_step": 2}, (60, 12, 1408)),
        ("qwen2_moe", {**QWEN, "decoder_sparse_step": 5}, (60, 4, 1408)),
        ("qwen3_moe", {**QWEN, "num_experts": 128, "mlp_only_layers": [0, 23, 24]}, (128, 22, 1408)),
        ("qwen3_moe", {**QWEN, "mlp_only_layers": None}, (60, 24, 1408)),
        ("qwen3_moe", {**QWEN, "decoder_sparse_step": 2, "mlp_only_layers": [0, 1, 3]}, (60, 10, 1408)),
        ("deepseek_v2", {"n_routed_experts": 64, "moe_intermediate_size": 1408}, (64, 0, 1408)),
        ("llama", {"intermediate_size": 5632}, (0, 0, 5632)),
        ("mixtral", {"intermediate_size": 14336}, (0, 0, 14336)),
    ],
)
def test_experts_of_each_family(
    model_type: str, config: dict[str, object], expected: tuple[int, int, int]
) -> None:
    found = card(model_type, **config)
    assert (found.n_experts, found.n_moe_layers, found.ffn_size) == expected


@pytest.mark.parametrize(
    ("model_type", "config", "sentence"),
    [
        ("qwen2_moe", {"decoder_sparse_step": 0}, "its decoder_sparse_step is 0"),
        ("qwen2_moe", {"decoder_sparse_step": 1.5}, "its decoder_sparse_step is 1.5, not a whole number"),
        ("qwen3_moe", {"mlp_only_layers": "all"}, "its mlp_only_layers is 'all', not a list of layers"),
        ("qwen3_moe", {"mlp_only_layers": [-1]}, "its mlp_only_layers is [-1], not a list of layers"),
        ("glm4_moe", {"first_k_dense_replace": True}, "its first_k_dense_replace is True"),
    ],
)
def test_layers_that_can_not_be_counted_are_refused(
    model_type: str, config: dict[str, object], sentence: str
) -> None:
    with pytest.raises(CardError, match="m can't be served") as caught:
        card(model_type, num_experts=8, **config)
    assert sentence in caught.value.cause.message


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_those_that_transformers_builds(family: str) -> None:
    """The rule of each family against the model class itself, on the meta device."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = {
        "hidden_size": 16,
        "intermediate_size": 8,
        "moe_intermediate_size": 8,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 32,
        "num_experts": 4,
        "num_local_experts": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 2,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    }
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(family, **config)
        )
    built = sum(hasattr(layer.mlp, "experts") for layer in model.model.layers)
    assert moe_layers({"model_type": family, **config}, 6) == built
