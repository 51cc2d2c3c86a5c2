import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from engines.cards import card_from_config, card_from_directory
from engines.model_errors import CardError, StoreError
from events.values import ModelCard, Quantization

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
}

SHAPES = {
    "llama": (LLAMA, (16, 8, 64, 0)),
    "mistral": ({**LLAMA, "model_type": "mistral", "head_dim": 128}, (16, 8, 128, 0)),
    "mixtral": ({**LLAMA, "model_type": "mixtral", "num_local_experts": 8}, (16, 8, 64, 8)),
    "qwen2": ({**LLAMA, "model_type": "qwen2", "num_key_value_heads": 2}, (16, 2, 64, 0)),
    "qwen2_moe": ({**LLAMA, "model_type": "qwen2_moe", "num_experts": 60}, (16, 8, 64, 60)),
    "qwen3": ({**LLAMA, "model_type": "qwen3"}, (16, 8, 128, 0)),
    "qwen3_moe": (
        {**LLAMA, "model_type": "qwen3_moe", "head_dim": 128, "num_experts": 128},
        (16, 8, 128, 128),
    ),
    "olmoe": (
        {**LLAMA, "model_type": "olmoe", "num_key_value_heads": 16, "num_experts": 64},
        (16, 16, 64, 64),
    ),
    "glm4_moe": (
        {**LLAMA, "model_type": "glm4_moe", "head_dim": 128, "n_routed_experts": 160},
        (16, 8, 128, 160),
    ),
    "gemma2": ({**LLAMA, "model_type": "gemma2", "head_dim": 256}, (16, 8, 256, 0)),
    "gemma3": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34},
            "vision_config": {"num_hidden_layers": 27},
            "torch_dtype": "bfloat16",
        },
        (34, 4, 256, 0),
    ),
    "gpt2": (
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_layer": 12,
            "n_embd": 768,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        (12, 12, 64, 0),
    ),
    "both spellings, equal": ({**LLAMA, "num_experts": 4, "num_local_experts": 4}, (16, 8, 64, 4)),
    "theta twice, equal": ({**LLAMA, "rope_parameters": {"rope_theta": 500000.0}}, (16, 8, 64, 0)),
    "theta per layer type": (
        {**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
        (16, 8, 64, 0),
    ),
}


def card(config: dict[str, object], weight_bytes: int = 2_000_000) -> ModelCard:
    return card_from_config("m", config, weight_bytes=weight_bytes, has_chat_template=True)


@pytest.mark.parametrize("family", SHAPES)
def test_shapes_that_the_cache_is_counted_with(family: str) -> None:
    config, expected = SHAPES[family]
    found = card(config)
    assert (found.n_layers, found.n_kv_heads, found.head_dim, found.n_experts) == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"rope_parameters": {"rope_theta": 10000.0}},
            "rope_theta = 500000.0 and rope_parameters.rope_theta = 1",
        ),
        ({"num_experts": 8, "num_local_experts": 4}, "num_experts = 8 and num_local_experts = 4"),
        ({"num_hidden_layers": None}, "gives no layers"),
        ({"num_hidden_layers": 0}, "gives no layers"),
        ({"vocab_size": None}, "gives no vocabulary"),
        ({"max_position_embeddings": None}, "gives no context length"),
        ({"num_attention_heads": [8, 16]}, "not a whole number"),
        ({"hidden_size": 2050}, "not a multiple"),
        ({"num_key_value_heads": 5}, "can't share"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM, not a decoder"),
        ({"is_encoder_decoder": True}, "not a decoder"),
        ({"torch_dtype": "float64"}, "its dtype float64"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes is not known"),
    ],
)
def test_what_would_be_served_wrongly_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(CardError, match="m can't be served") as caught:
        card({**LLAMA, **change})
    assert sentence in caught.value.cause.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LLAMA, "bits", "x"]), inner)
    ),
    max_leaves=6,
)
KEYS = [
    *LLAMA,
    "head_dim",
    "num_experts",
    "num_local_experts",
    "rope_parameters",
    "quantization",
    "text_config",
]


@given(st.dictionaries(st.sampled_from([*KEYS, "quantization_config", "kv_lora_rank"]), JSON))
def test_any_json_gives_a_card_or_a_reason(change: dict[str, object]) -> None:
    try:
        made = card({**LLAMA, **change})
    except CardError as error:
        assert error.cause.message.endswith(".")  # noqa: PT017
    else:
        assert msgspec.json.decode(msgspec.json.encode(made), type=ModelCard) == made
        assert min(made.n_layers, made.n_kv_heads, made.head_dim, made.n_heads) > 0


def test_a_vision_model_alone_is_refused() -> None:
    with pytest.raises(CardError, match="vision model without a language part"):
        card({"model_type": "vit", "vision_config": {"num_hidden_layers": 12}})


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}}, Quantization(bits=4, group_size=64)),
        (
            {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
            Quantization(bits=4, group_size=128),
        ),
        ({"quantization_config": {"quant_method": "mxfp4"}}, Quantization(bits=4, group_size=32)),
    ],
)
def test_quantizations_that_are_known(stated: dict[str, object], expected: Quantization) -> None:
    assert card({**LLAMA, **stated}).quantization == expected


def test_parameters_are_estimated_where_no_header_is_at_hand() -> None:
    assert card(LLAMA, weight_bytes=2_000_000).n_params == 1_000_000
    assert (
        card({**LLAMA, "quantization": {"group_size": 64, "bits": 4}}, weight_bytes=4_500_000).n_params
        == 8_000_000
    )


def test_a_directory_counts_bytes_and_parameters_exactly(tiny: Path) -> None:
    found = card_from_directory(tiny)
    held = (tiny / "model.safetensors").stat().st_size
    assert found.n_params * 4 == found.weight_bytes
    assert held - 8192 < found.weight_bytes < held
    assert found.has_chat_template
    assert found.dtype == "float32"


def test_packed_parameters_are_counted_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**LLAMA, "quantization": {"group_size": 64, "bits": 4}})
    )
    packed = {
        "a.weight": np.zeros((10, 16), np.uint32),  # 10 x 128 weights of 4 bits
        "a.scales": np.zeros((10, 2), np.float16),
        "a.biases": np.zeros((10, 2), np.float16),
        "norm.weight": np.zeros(10, np.float16),
    }
    save_file(packed, tmp_path / "model.safetensors")
    assert card_from_directory(tmp_path).n_params == 10 * 128 + 10


def test_missing_shards_are_named(tiny: Path, tmp_path: Path) -> None:
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00003.safetensors")
    names = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    index = {"weight_map": {f"t{n}": name for n, name in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(StoreError, match=rf"lacks {names[1]}, {names[2]} of its 3 weight files"):
        card_from_directory(tmp_path)


@pytest.mark.parametrize("keep", [4, 100, -1])
def test_a_cut_weight_file_is_found(tiny: Path, tmp_path: Path, keep: int) -> None:
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(StoreError, match=r"model.safetensors .*fetch it again"):
        card_from_directory(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "has no config.json"), ("[1]", "not a JSON object"), ("{", "not a JSON object")],
)
def test_an_unreadable_config_is_said_so(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(StoreError, match=sentence):
        card_from_directory(tmp_path)
