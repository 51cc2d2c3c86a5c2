"""MLX's arithmetic for `engines.speed`, in the dtype of its self-test."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from engines.speed import HEAD_DIM


class MlxKit:
    """Implements `engines.speed.Kit`."""

    def __init__(self) -> None:
        self._dtype = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else mx.bfloat16

    def full(self, *shape: int) -> mx.array:
        """Some small number everywhere."""
        return mx.full(shape, 0.01, dtype=self._dtype)

    def linear(self, x: mx.array, weight: mx.array) -> mx.array:
        """As `nn.Linear`."""
        return x @ weight.T

    def norm(self, x: mx.array) -> mx.array:
        """As `nn.RMSNorm`."""
        return mx.fast.rms_norm(x, None, 1e-5)

    def gated(self, gate: mx.array, up: mx.array) -> mx.array:
        """As mlx-lm's models have it."""
        return nn.silu(gate) * up

    def attention(self, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """As mlx-lm's models have it, without a mask."""
        heads = [x.reshape(1, len(x), -1, HEAD_DIM).transpose(0, 2, 1, 3) for x in (q, k, v)]
        out = mx.fast.scaled_dot_product_attention(*heads, scale=HEAD_DIM**-0.5)
        return out.transpose(0, 2, 1, 3).reshape(len(q), -1)

    def wait(self, x: mx.array) -> None:
        """MLX computes nothing before."""
        mx.eval(x)  # pyright: ignore[reportUnknownMemberType]
