"""Tiny random mixtures of experts, of every family that expert parallelism knows, as transformers saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engines.torch.experts import formats

HIDDEN, INNER, LAYERS, EXPERTS, VOCAB = 32, 48, 3, 6, 97

_SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "glm4_moe": {
        "moe_intermediate_size": INNER,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
    },
    "mixtral": {},
    "olmoe": {},
    "qwen2_moe": {
        "moe_intermediate_size": INNER,
        "shared_expert_intermediate_size": 40,
        "num_experts_per_tok": 3,
        "mlp_only_layers": [1],
    },
    "qwen3_moe": {"moe_intermediate_size": INNER, "decoder_sparse_step": 2, "norm_topk_prob": True},
}
FAMILIES = sorted(_FAMILIES)
MOE_LAYERS = {"glm4_moe": 2, "mixtral": 3, "olmoe": 3, "qwen2_moe": 2, "qwen3_moe": 1}


def config(family: str, experts: int = EXPERTS) -> Any:
    """Of a family's tiny model: two experts a token (three for Qwen2-MoE)."""
    name = {"glm4_moe": "n_routed_experts", "mixtral": "num_local_experts"}.get(family, "num_experts")
    own = {"num_experts_per_tok": 2, name: experts} | _FAMILIES[family]
    return AutoConfig.for_model(family, **_SHAPE | own)


def tiny_moe_dir(path: Path, family: str, *, dtype: torch.dtype = torch.float32) -> Path:
    """Write the model to ``path`` and return it. Weights are large enough for experts to differ much."""
    model = AutoModelForCausalLM.from_config(config(family)).to(dtype)
    draw = torch.Generator().manual_seed(5)
    for _, parameter in sorted(model.named_parameters()):
        if parameter.dim() > 1:
            parameter.data.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
    model.save_pretrained(path)
    return path


def reference(path: Path, format: str, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The unsharded model of transformers; for int8 its experts' weights have been through that format."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, experts_implementation="grouped_mm")
    if format == "int8":
        for name, parameter in model.named_parameters():
            if ".experts." in name:
                for matrix in parameter.data:
                    whole, scale = formats.quantised(matrix.float())
                    matrix.copy_(whole * scale[:, None])
    return model.eval().requires_grad_(False)


def logits(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """(rows, n, vocabulary)."""
    with torch.inference_mode():
        return model(tokens).logits


def some_tokens(rows: int, n: int, seed: int = 3) -> torch.Tensor:
    """int64 [rows, n]."""
    return torch.randint(VOCAB, (rows, n), generator=torch.Generator().manual_seed(seed))
