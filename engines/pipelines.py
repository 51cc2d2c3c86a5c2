"""Which models can be split by layers: a pure function, for placement and for loading."""

from __future__ import annotations

from events.values import ModelCard

PLAIN = frozenset({"llama", "mistral", "mixtral", "olmo2", "olmoe", "phi3", "qwen2_moe", "qwen3"})
"""Model types whose forward pass in mlx-lm is: embed, every layer with one mask, norm, output."""

THEIR_OWN = frozenset(
    {
        "bailing_hybrid",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v41",
        "glm4_moe",
        "glm4_moe_lite",
        "ministral3",
        "mistral4",
        "qwen2",
        "qwen3_moe",
        "qwen3_next",
    }
)
"""Model types for which mlx-lm brings a pipeline."""


def pipeline_refusal(card: ModelCard) -> str | None:
    """Why ranks can't take some layers each; None where they can. Without a full stop.

    Some models of these types have layers of two kinds, which shows at the load only.
    """
    if card.model_type in PLAIN | THEIR_OWN:
        return None
    return (
        f"mlx-lm has no pipeline for {card.model_type} models, nor has Cuebook; place {card.model_id} on one "
        "device, or with the tensor strategy"
    )
