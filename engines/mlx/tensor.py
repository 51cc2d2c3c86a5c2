"""Tensor parallelism: every rank computes its part of every layer (mlx-lm's ``shard`` of the model)."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from engines.contract import LoadSpec
from engines.divisibility import tensor_refusal
from engines.mlx.group import MlxGroup
from engines.mlx.pipeline import drop_output
from engines.refusals import refused


def shard(model: nn.Module, group: MlxGroup, spec: LoadSpec) -> nn.Module:
    """Reduce a model whose weights are not read yet to this rank's part. Raises `LoadError`."""
    if refusal := tensor_refusal(spec.card, group.world):
        raise refused("tensor_indivisible", f"{refusal}. Use another number of ranks, or pipeline.")
    if not hasattr(model, "shard"):
        raise refused(
            "tensor_unsupported",
            f"mlx-lm can't split the layers of {spec.card.model_type} models. Use the pipeline strategy.",
        )
    whole = cast("Any", model)
    whole.shard(group.comm)
    if group.rank:
        whole.model.embed_tokens = EmbeddingOnly(whole.model.embed_tokens)
        drop_output(model)
    return SharedTokens(model)


class EmbeddingOnly(nn.Module):
    """Embeddings that are not the output layer as well."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def __call__(self, tokens: mx.array) -> mx.array:
        """Tokens (B, L) to (B, L, D)."""
        return cast("Any", self.embedding)(tokens)

    def as_linear(self, x: mx.array) -> mx.array:
        """As `engines.mlx.pipeline.OneColumn`."""
        return x[..., :1]


class SharedTokens(nn.Module):
    """A sharded model whose tokens are rank 0's: the other ranks put in zeros, and the sum is what counts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Tokens (B, L) to logits (B, L, V); on ranks other than 0 they are of use for nothing."""
        agreed = mx.distributed.all_sum(tokens.astype(mx.int32))
        return cast("Any", self.model)(agreed, cache=cache)

    @property
    def layers(self) -> list[nn.Module]:
        """All layers."""
        return cast("Any", self.model).layers
