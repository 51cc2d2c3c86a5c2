"""A mixture of experts made of a dense llama: each is a copy of its feed-forward, so it says the same.

With noise on each expert it says something else, and a token that reaches the wrong expert shows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TOP_K = 2
_PARTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""Names of a feed-forward's matrices, and Mixtral's for them."""


def upcycle(
    dense: Path,
    path: Path,
    *,
    model_type: str = "mixtral",
    experts: int = 6,
    noise: float = 0.0,
    skew: float = 0.0,
    seed: int = 1,
) -> Path:
    """Write the model to ``path`` and return it. Equal arguments give equal bytes.

    ``model_type``: mixtral or glm4_moe, whose first layer stays dense. ``noise`` is relative to the size of
    the weights; ``skew`` makes routers prefer some experts.
    """
    path.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        if (dense / name).exists():
            shutil.copy(dense / name, path / name)
    config = json.loads((dense / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(_config(config, model_type, experts), indent=2))
    draw = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name, tensor in sorted(load_file(dense / "model.safetensors").items()):
        layer = int(name.split(".")[2]) if ".layers." in name else -1
        if ".mlp." not in name or (model_type == "glm4_moe" and layer == 0):
            made[name] = tensor
        else:
            made |= _experts(name, tensor, model_type, experts, noise, draw)
            if name.endswith("gate_proj.weight"):
                made |= _router(layer, tensor, model_type, experts, skew, draw)
    save_file(made, path / "model.safetensors", metadata={"format": "pt"})
    return path


def _config(dense: dict[str, Any], model_type: str, experts: int) -> dict[str, Any]:
    kept = {
        key: value for key, value in dense.items() if key not in ("architectures", "model_type", "mlp_bias")
    }
    if model_type == "mixtral":
        own: dict[str, Any] = {"num_local_experts": experts, "architectures": ["MixtralForCausalLM"]}
    else:
        own = {
            "architectures": ["Glm4MoeForCausalLM"],
            "n_routed_experts": experts,
            "moe_intermediate_size": dense["intermediate_size"],
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "partial_rotary_factor": 1.0,
            "attention_bias": False,
            "use_qk_norm": False,
        }
    return kept | own | {"model_type": model_type, "num_experts_per_tok": TOP_K}


def _experts(
    name: str, tensor: Tensor, model_type: str, experts: int, noise: float, draw: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    """One matrix of a feed-forward, for each expert."""
    layer, _, rest = name.partition(".mlp.")
    part = rest.removesuffix(".weight")
    size = noise * tensor.float().std()
    for expert in range(experts):
        own = tensor.clone()
        if noise:
            own = (tensor.float() + size * torch.randn(tensor.shape, generator=draw)).to(tensor.dtype)
        if model_type == "mixtral":
            yield f"{layer}.block_sparse_moe.experts.{expert}.{_PARTS[part]}.weight", own
        else:
            yield f"{layer}.mlp.experts.{expert}.{part}.weight", own
    if model_type == "glm4_moe":  # its shared expert adds nothing: down to zero
        shared = torch.zeros_like(tensor) if part == "down_proj" else tensor.clone()
        yield f"{layer}.mlp.shared_experts.{part}.weight", shared


def _router(
    layer: int, like: Tensor, model_type: str, experts: int, skew: float, draw: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    """A router of chance. Skewed, some experts are likelier than others, whatever the token."""
    weight = torch.randn(experts, like.shape[1], generator=draw)
    liking = skew * torch.linspace(1, 0, experts)[torch.randperm(experts, generator=draw)]
    if model_type == "mixtral":  # its router has no bias: a longer row is chosen more often
        yield (
            f"model.layers.{layer}.block_sparse_moe.gate.weight",
            (weight * (1 + liking)[:, None]).to(like.dtype),
        )
    else:
        yield f"model.layers.{layer}.mlp.gate.weight", weight.to(like.dtype)
        yield f"model.layers.{layer}.mlp.gate.e_score_correction_bias", liking
