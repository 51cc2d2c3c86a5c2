"""Where transformers and checkpoints of each family keep the experts.

Routers, gates, shared experts and activations are transformers' own modules and stay so, on every rank; only
the routed experts are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from engines.refusals import refused
from engines.torch.model import layers


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of tensors in a checkpoint: ``model.layers.<n>.<block>.<expert>.<gate, up or down>.weight``."""

    block: str
    gate: str
    up: str
    down: str

    def prefix(self, layer: int) -> str:
        """What the names of all experts' tensors of a decoder layer begin with."""
        return f"model.layers.{layer}.{self.block}."

    def names(self, layer: int, expert: int) -> tuple[str, str, str]:
        """Of the gate (I, H), the up (I, H) and the down projection (H, I) of an expert."""
        start = f"{self.prefix(layer)}{expert}."
        return f"{start}{self.gate}.weight", f"{start}{self.up}.weight", f"{start}{self.down}.weight"


_COMMON = Layout("mlp.experts", "gate_proj", "up_proj", "down_proj")
LAYOUTS = {
    "glm4_moe": _COMMON,
    "mixtral": Layout("block_sparse_moe.experts", "w1", "w3", "w2"),
    "olmoe": _COMMON,
    "qwen2_moe": _COMMON,
    "qwen3_moe": _COMMON,
}
"""By ``model_type``."""


@dataclass(frozen=True, slots=True)
class MoeBlock:
    """The parts of one decoder layer that expert parallelism deals with."""

    layer: int
    """Number of the decoder layer."""
    router: nn.Module
    """Called once a pass with hidden states; returns (logits, weights [tokens, k], experts [tokens, k])."""
    module: Any
    """transformers' module of the routed experts."""

    @property
    def n_experts(self) -> int:
        """Logical experts."""
        return self.module.num_experts

    @property
    def hidden(self) -> int:
        """H, the model's width."""
        return self.module.hidden_dim

    @property
    def inner(self) -> int:
        """I, an expert's inner width."""
        return self.module.intermediate_dim


def layout(model_type: str) -> Layout:
    """Of a family. Raises `LoadError` for one whose experts can't be spread over ranks."""
    found = LAYOUTS.get(model_type)
    if found is None:
        raise refused(
            "experts_unsupported",
            f"The experts of {model_type} models can't be spread over ranks; those of "
            f"{', '.join(sorted(LAYOUTS))} models can. Place it with another strategy.",
        )
    return found


def blocks(model: PreTrainedModel) -> list[MoeBlock]:
    """The MoE layers of a model of a known family, in order. Raises `LoadError` where there are none."""
    found = list(_blocks(model))
    if not found:
        raise refused(
            "no_experts", "No layer of the model has experts to spread; place it with another strategy."
        )
    return found


def _blocks(model: PreTrainedModel) -> Iterator[MoeBlock]:
    for number, layer in enumerate(layers(model)):
        block: Any = layer.mlp
        if hasattr(block, "experts"):
            yield MoeBlock(number, block.gate, block.experts)
