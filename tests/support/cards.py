"""Model cards of three sizes: one that fits anywhere, one that fits somewhere, one that fits nowhere."""

from __future__ import annotations

from events.values import ModelCard, Quantization

SMALL = ModelCard(
    model_id="Small-135M",
    model_type="llama",
    n_layers=30,
    hidden_size=576,
    n_heads=9,
    n_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_context=8192,
    dtype="bfloat16",
    n_params=134_515_008,
    weight_bytes=269_060_552,
)
QUANTIZED = ModelCard(
    model_id="Quantized-7B",
    model_type="qwen2",
    n_layers=28,
    hidden_size=3584,
    n_heads=28,
    n_kv_heads=4,
    head_dim=128,
    vocab_size=152064,
    max_context=32768,
    dtype="float16",
    n_params=7_615_616_512,
    weight_bytes=4_284_000_000,
    quantization=Quantization(bits=4, group_size=64),
    has_chat_template=False,
)
HUGE = ModelCard(
    model_id="Huge-405B",
    model_type="llama",
    n_layers=126,
    hidden_size=16384,
    n_heads=128,
    n_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    max_context=131072,
    dtype="bfloat16",
    n_params=405_853_388_800,
    weight_bytes=811_706_777_600,
)
MIXTURE = ModelCard(
    model_id="Mixture-8x160M",
    model_type="mixtral",
    n_layers=12,
    hidden_size=768,
    n_heads=12,
    n_kv_heads=4,
    head_dim=64,
    vocab_size=32000,
    max_context=8192,
    dtype="bfloat16",
    n_params=747_000_000,
    weight_bytes=1_494_000_000,
    n_experts=8,
    n_moe_layers=12,
    ffn_size=3072,
)
"""Experts of 7 million parameters each, 680 million in all."""
CARDS = (SMALL, QUANTIZED, HUGE)
