"""What the card says of a model's attention, and the one sentence that refuses it before and at the load."""

from __future__ import annotations

import msgspec
import pytest
from support.cards import SMALL

from engines.attention import attention_refusal
from engines.cards import card_from_config

BASE = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 8192,
}
FULL, SLIDING = "full_attention", "sliding_attention"
SAID = {
    "llama": ({"model_type": "llama"}, 0, []),
    "mistral that leaves it out": ({"model_type": "mistral"}, 4096, []),
    "mistral without": ({"model_type": "mistral", "sliding_window": None}, 0, []),
    "mistral with": ({"model_type": "mistral", "sliding_window": 2048}, 2048, []),
    "qwen2 that says nothing of its use": ({"model_type": "qwen2", "sliding_window": 512}, 0, []),
    "qwen2 that does not use it": (
        {"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False},
        0,
        [],
    ),
    "qwen3 that uses it": (
        {"model_type": "qwen3", "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 2},
        512,
        [],
    ),
    "qwen3_moe": ({"model_type": "qwen3_moe", "sliding_window": 512}, 0, []),
    "gemma2": ({"model_type": "gemma2"}, 4096, []),
    "gemma3": ({"model_type": "gemma3_text", "sliding_window": 1024}, 1024, []),
    "of kinds": (
        {"model_type": "qwen3_next", "layer_types": ["linear_attention", FULL] * 2},
        0,
        ["linear_attention"],
    ),
    "by an interval": ({"model_type": "qwen3_next", "full_attention_interval": 2}, 0, ["linear_attention"]),
    "of known kinds": (
        {"model_type": "gemma3_text", "sliding_window": 99, "layer_types": [SLIDING, FULL] * 2},
        99,
        [],
    ),
}


@pytest.mark.parametrize(("config", "window", "others"), SAID.values(), ids=SAID)
def test_the_card_says_what_the_layers_attend_to(
    config: dict[str, object], window: int, others: list[str]
) -> None:
    card = card_from_config("m", {**BASE, **config}, weight_bytes=1 << 20, has_chat_template=False)
    assert (card.window, card.other_layers) == (window, others)


@pytest.mark.parametrize(("config", "window", "others"), SAID.values(), ids=SAID)
def test_transformers_takes_the_config_so(config: dict[str, object], window: int, others: list[str]) -> None:
    """Or placement would let pass what the load refuses."""
    transformers = pytest.importorskip("transformers")
    took = transformers.AutoConfig.for_model(**{**BASE, **config})
    assert (took.sliding_window if hasattr(took, "sliding_window") else None) in (window or None, window)
    assert sorted(set(getattr(took, "layer_types", None) or [FULL]) - {FULL, SLIDING}) == others


def test_a_window_that_holds_the_context_is_none() -> None:
    card = msgspec.structs.replace(SMALL, window=512)
    assert attention_refusal(card, 512) is None
    assert attention_refusal(card, 513) == (
        "Small-135M attends within 512 tokens, which the torch engine does not do yet; use another engine, "
        "or a context of at most 512"
    )


def test_layers_that_keep_nothing_are_refused_whatever_the_context() -> None:
    card = msgspec.structs.replace(SMALL, other_layers=["conv", "mamba"])
    assert attention_refusal(card, 1) == (
        "The torch engine keeps keys and values, which conv, mamba layers of llama models have not; use "
        "another engine"
    )
    assert attention_refusal(SMALL, 8192) is None
