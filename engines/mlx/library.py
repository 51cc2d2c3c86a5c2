"""What we take from MLX and mlx-lm, with types: theirs are too loose for a strict checker."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

from engines.batching import Batch
from engines.contract import LoadSpec
from engines.prompts import HubTokenizer

Config = dict[str, Any]


def batch_generator(model: nn.Module, eos: Sequence[int], spec: LoadSpec) -> Batch:
    """Continuous batching that prefills one prompt at a time, one chunk between two decode steps.

    Prompts are not padded together: alone, a prompt is computed exactly as `mlx_lm.generate` computes it,
    and the pause of running streams is bounded by one chunk.
    """
    from mlx_lm.generate import BatchGenerator

    made = BatchGenerator(
        model,
        stop_tokens=[[token] for token in eos],
        completion_batch_size=spec.batch,
        prefill_batch_size=1,
        prefill_step_size=spec.prefill_chunk,
    )
    return cast("Batch", made)


def load_tokenizer(path: Path, eos: object) -> HubTokenizer:
    """The tokenizer with its chat template; ``eos`` is config's eos_token_id (int, list or None)."""
    from mlx_lm import utils

    return cast("HubTokenizer", utils.load_tokenizer(path, eos_token_ids=eos))


def load_config(path: Path) -> Config:
    """config.json, with generation_config.json's eos_token_id where it names one."""
    from mlx_lm import utils

    return utils.load_config(path)


def model_classes(config: Config) -> tuple[type[nn.Module], type[object]]:
    """The model class and its arguments class. Raises `ValueError` for a model type mlx-lm lacks."""
    from mlx_lm import utils

    return utils._get_classes(config)  # pyright: ignore[reportPrivateUsage]


def load_model(path: Path, overrides: Config) -> nn.Module:
    """The model with its weights not yet read. Raises `ValueError` where tensors are missing or left over."""
    from mlx_lm import utils

    return utils.load_model(path, lazy=True, strict=True, model_config=overrides)[0]


def cast_weights(model: nn.Module, dtype: mx.Dtype) -> None:
    """Cast the floating weights, apart from those that the model class keeps as they are. Nothing is read."""
    wanted: Callable[[str], bool] = getattr(model, "cast_predicate", lambda _: True)

    def cast_one(name: str, value: mx.array) -> mx.array:
        return value.astype(dtype) if wanted(name) and mx.issubdtype(value.dtype, mx.floating) else value

    model.update(tree_map_with_path(cast_one, model.parameters()))


def layers(model: nn.Module) -> list[nn.Module]:
    """The model's layers, in order."""
    return cast("Any", model).layers


def read_weights(module: nn.Module) -> None:
    """Bring the weights of a module into memory."""
    mx.eval(module.parameters())


def compute(array: mx.array) -> int:
    """The value of a scalar. Other threads run meanwhile, as they do not in ``array.item()`` alone."""
    mx.eval(array)
    return cast("int", array.item())


def after(value: mx.array, other: mx.array) -> mx.array:
    """``value``, which is not computed before ``other`` is."""
    return mx.depends(value, other)
