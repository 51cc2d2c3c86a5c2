"""Model families whose experts can be spread over ranks, and which of their layers have experts.

Each gives the number of its MoE layers by its own names in config.json, with the defaults that transformers'
configuration classes have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

Config = Mapping[str, object]


def moe_layers(config: Config, n_layers: int) -> int:
    """Layers with experts of a model with ``n_layers``; 0 for a family that is not in `FAMILIES`.

    Raises `ValueError`, whose message names the key, for a value that is none.
    """
    count = FAMILIES.get(str(config.get("model_type", "")))
    return count(config, n_layers) if count else 0


def _every(config: Config, n_layers: int) -> int:
    del config
    return n_layers


def _after_the_dense(config: Config, n_layers: int) -> int:
    """The first few layers are dense."""
    return max(0, n_layers - _whole(config, "first_k_dense_replace", 1))


def _every_nth(config: Config, n_layers: int) -> int:
    """Layer i has experts where i + 1 is a multiple of the step and i is not listed as dense."""
    step = _whole(config, "decoder_sparse_step", 1)
    if step == 0:
        raise ValueError("its decoder_sparse_step is 0")
    dense = {layer for layer in _layers(config, "mlp_only_layers") if layer < n_layers}
    return n_layers // step - sum((layer + 1) % step == 0 for layer in dense)


FAMILIES: dict[str, Callable[[Config, int], int]] = {
    "glm4_moe": _after_the_dense,
    "mixtral": _every,
    "olmoe": _every,
    "qwen2_moe": _every_nth,
    "qwen3_moe": _every_nth,
}
"""By ``model_type``: how many layers of a config have experts."""


def _whole(config: Config, name: str, default: int) -> int:
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"its {name} is {value!r}, not a whole number that can be")
    return value


def _layers(config: Config, name: str) -> list[int]:
    value: object = config.get(name)
    if value is None:
        return []
    layers = cast("list[object]", value) if isinstance(value, list) else [value]
    if not all(isinstance(layer, int) and layer >= 0 for layer in layers):
        raise ValueError(f"its {name} is {value!r}, not a list of layers")
    return cast("list[int]", layers)
