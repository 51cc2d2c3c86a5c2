"""Pipeline parallelism: a rank computes the layers ``[start, end)`` and hands its hidden state on.

Rank 0 also embeds the tokens, and the last rank's hidden state comes back to it for the output layer: it
alone knows tokens. mlx-lm's own pipelines (`PipelineMixin`) are used where a model has one; the others
here have the same plain forward pass, whose first and last step are replaced.
"""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from engines.contract import LoadError, LoadSpec
from engines.mlx.group import MlxGroup, mlx_rank
from engines.mlx.library import after
from engines.pipelines import PLAIN
from engines.refusals import refused


def shard(model: nn.Module, group: MlxGroup, spec: LoadSpec) -> nn.Module:
    """Reduce a model whose weights are not read yet to this rank's part. Raises `LoadError`."""
    if "model" not in model:
        raise _unsupported(spec)
    inner = cast("Any", model).model
    total = len(inner.layers)
    if not _is_mine(group, spec, total):
        raise refused(
            "wrong_layers",
            f"Rank {group.rank} of {group.world} can't hold the layers {spec.start_layer} to "
            f"{spec.end_layer} of {total}: rank 0 starts at the first one, the last rank ends at the last.",
        )
    if hasattr(inner, "pipeline"):
        inner.pipeline(group.comm, split=_split(group, spec, total))
        if group.rank:
            inner.embed_tokens = NoEmbedding(inner.embed_tokens)
            drop_output(model)
        return model
    if spec.card.model_type not in PLAIN or any(
        getattr(layer, "use_sliding", False) for layer in inner.layers
    ):
        raise _unsupported(spec)
    return _stage(model, group, spec)


def _stage(model: nn.Module, group: MlxGroup, spec: LoadSpec) -> Stage:
    inner = cast("Any", model).model
    inner.layers = inner.layers[spec.start_layer : spec.end_layer]
    if group.rank:
        inner.embed_tokens = Receive(inner.embed_tokens, mlx_rank(group.spec) + 1)
        drop_output(model)
    inner.norm = HandOn(inner.norm, mlx_rank(group.spec), is_first=group.rank == 0)
    return Stage(model)


def _unsupported(spec: LoadSpec) -> LoadError:
    return refused(
        "pipeline_unsupported",
        f"mlx-lm has no pipeline for this kind of {spec.card.model_type} model, nor has Cuebook. "
        "Place it on one device, or with the tensor strategy.",
    )


def drop_output(model: nn.Module) -> None:
    """Leave the output layer out: what is drawn from one column is token 0, whatever the model says."""
    if "lm_head" in model:
        cast("Any", model).lm_head = OneColumn()


class OneColumn(nn.Module):
    """Stands for an output layer where nobody looks at the logits."""

    def __call__(self, x: mx.array) -> mx.array:
        """(B, L, D) to (B, L, 1)."""
        return x[..., :1]


class NoEmbedding(nn.Module):
    """Stands for embeddings whose values are not needed: tokens (B, L) to zeros (B, L, D)."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        like = cast("Any", embedding)(mx.zeros((1, 1), mx.int32))
        self._width, self._dtype = like.shape[-1], like.dtype

    def __call__(self, tokens: mx.array) -> mx.array:
        """Zeros of the embeddings' shape."""
        return mx.zeros((*tokens.shape, self._width), self._dtype)

    def as_linear(self, x: mx.array) -> mx.array:
        """Where the output layer is tied to the embeddings, neither is needed."""
        return x[..., :1]


class Receive(NoEmbedding):
    """Stands for the embeddings on a rank that gets its hidden state from rank ``source`` of MLX's group."""

    def __init__(self, embedding: nn.Module, source: int) -> None:
        super().__init__(embedding)
        self._source = source

    def __call__(self, tokens: mx.array) -> mx.array:
        """The hidden state (B, L, D) of the rank before."""
        return mx.distributed.recv((*tokens.shape, self._width), self._dtype, self._source)


class HandOn(nn.Module):
    """Stands for the last norm: hands the hidden state on, and brings the last rank's back to rank 0."""

    def __init__(self, norm: nn.Module, rank: int, *, is_first: bool) -> None:
        super().__init__()
        self._rank = rank
        if is_first:
            self.norm = norm
        self._is_first = is_first
        self._sent: mx.array | None = None

    def __call__(self, h: mx.array) -> mx.array:
        """The model's last hidden state (B, L, D), normed, on rank 0; of use for nothing on the others."""
        if self._rank:
            h = self._sent = mx.distributed.send(h, self._rank - 1)
        last = mx.distributed.all_gather(h)[: h.shape[0]]
        return cast("Any", self.norm)(last) if self._is_first else last

    def take_sent(self) -> mx.array | None:
        """What was sent in the last pass; None on the last rank of the pipeline."""
        sent, self._sent = self._sent, None
        return sent


class Stage(nn.Module):
    """A model that is one stage. Prefill computes caches alone, so sending must be a part of them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Tokens (B, L) to logits (B, L, V) on rank 0, to (B, L, 1) on the others."""
        model = cast("Any", self.model)
        out = model(tokens, cache=cache)
        sent = model.model.norm.take_sent()
        if sent is not None:
            cache[-1].keys = after(cache[-1].keys, sent)
        return out

    @property
    def layers(self) -> list[nn.Module]:
        """The layers of this stage."""
        return cast("Any", self.model).layers


def _is_mine(group: MlxGroup, spec: LoadSpec, total: int) -> bool:
    first, last = group.rank == 0, group.rank == group.world - 1
    return (
        0 <= spec.start_layer < spec.end_layer <= total
        and first == (spec.start_layer == 0)
        and last == (spec.end_layer == total)
    )


def _split(group: MlxGroup, spec: LoadSpec, total: int) -> list[int]:
    """mlx-lm wants every rank's number of layers, and uses those before this rank's and its own."""
    before, after = group.rank, group.world - 1 - group.rank
    counts = [*_parts(spec.start_layer, before), spec.end_layer - spec.start_layer]
    return [*counts, *_parts(total - spec.end_layer, after)][::-1]


def _parts(layers: int, ranks: int) -> list[int]:
    return [] if ranks == 0 else [layers - ranks + 1, *[1] * (ranks - 1)]
