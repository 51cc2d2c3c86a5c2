"""Which models can be split into tensor-parallel ranks: a pure function, for placement and for loading."""

from __future__ import annotations

from events.values import ModelCard

TENSOR_TYPES = frozenset({"llama", "mistral", "ministral3", "qwen2", "qwen3"})
"""Dense models that mlx-lm can split; whoever chooses tensor ranks unasked keeps to these."""


def tensor_refusal(card: ModelCard, world: int) -> str | None:
    """Why ``world`` ranks can't share every layer of the model; None where they can.

    Each rank takes whole attention heads, whole key-value heads and an equal part of the feed-forward
    width; of quantized weights whole groups, because a group shares one scale (Shoeybi et al. 2019,
    "Megatron-LM", for the split itself). A width of 0 is unknown and left to the load.
    """
    group = card.quantization.group_size if card.quantization else 1
    shared = (
        ("attention heads", card.n_heads, 1),
        ("key-value heads", card.n_kv_heads, 1),
        ("dimensions in its hidden state", card.hidden_size, 1),
        ("dimensions in its attention output", card.n_heads * card.head_dim, group),
        ("dimensions in its feed-forward layers", card.ffn_size, group),
    )
    for what, number, unit in shared:
        if number % (world * unit):
            by = f" in quantization groups of {unit}" if unit > 1 and number % world == 0 else ""
            return f"{card.model_id} has {number} {what}, which {world} ranks can't share evenly{by}"
    return None
