"""Does mlx-lm read a config.json as it is meant? What it would misread is corrected or refused.

mlx-lm's argument classes take the keys they know, at the top level, and fall back to defaults in silence:
a rope_theta that only stands in ``rope_parameters`` becomes 10000 and the model writes fluent nonsense.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from engines.mlx.library import Config
from engines.refusals import COMPARED, EXPERTS, conflict, experts_said, refused


def corrections(
    config: Config, args_class: type[object], tensors: frozenset[str]
) -> tuple[Config, list[str]]:
    """Keys to add to ``config`` so that ``args_class`` reads what it says, with a note on each.

    ``tensors`` are the names in the weight files. Raises `LoadError` where config.json contradicts itself.
    """
    known = _fields(args_class)
    found = {**_rope(config, known), **_experts(config, known), **_embeddings(config, known, tensors)}
    notes = [f"{key} = {value} was supplied from {source}" for key, (value, source) in found.items()]
    return {key: value for key, (value, _) in found.items()}, notes


def verify(config: Config, args: object) -> None:
    """Compare what the model took with what config.json says. Raises `LoadError` on a difference."""
    for key in COMPARED:
        said, took = config.get(key), getattr(args, key, None)
        if said is not None and took is not None and said != took:
            raise refused(
                "config_misread",
                f"config.json says {key} = {said}, but mlx-lm took {took}: the model would answer wrongly. "
                "Convert it again for MLX, or use another engine.",
            )


_Found = dict[str, tuple[Any, str]]


def _fields(args_class: type[object]) -> frozenset[str]:
    if not dataclasses.is_dataclass(args_class):
        return frozenset()
    return frozenset(field.name for field in dataclasses.fields(args_class))


def _rope(config: Config, known: frozenset[str]) -> _Found:
    """Newer transformers move rope_theta, partial_rotary_factor and the scaling into ``rope_parameters``."""
    nested: object = config.get("rope_parameters")
    if "rope_parameters" in known or not isinstance(nested, dict):
        return {}
    wanted = _flat(cast("dict[str, Any]", nested))
    found: _Found = {}
    for key, value in wanted.items():
        if config.get(key) is None and key in known:
            found[key] = (value, "rope_parameters")
        elif config.get(key) is None:
            raise refused(
                "config_misread",
                f"mlx-lm's class for this model can't be told {key} = {value}; use another engine.",
            )
        elif key != "rope_scaling" and config[key] != value:
            raise conflict(key, config[key], f"rope_parameters.{key}", value)
    return found


def _flat(nested: Mapping[str, Any]) -> Config:
    """``rope_parameters`` as the older keys."""
    if any(isinstance(value, dict) for value in nested.values()):
        raise refused(
            "config_misread",
            "config.json has rope_parameters for each kind of layer, which mlx-lm's class for this model "
            "does not read; use another engine.",
        )
    moved = {key: nested[key] for key in ("rope_theta", "partial_rotary_factor") if key in nested}
    if nested.get("rope_type", "default") != "default":
        moved["rope_scaling"] = {key: value for key, value in nested.items() if key not in moved}
    return moved


def _experts(config: Config, known: frozenset[str]) -> _Found:
    said = experts_said(config)
    wanted = [key for key in EXPERTS if key in known]
    if said and wanted and not any(key in said for key in wanted):
        first = next(iter(said))
        return {wanted[0]: (said[first], first)}
    return {}


def _embeddings(config: Config, known: frozenset[str], tensors: frozenset[str]) -> _Found:
    """Unsaid, mlx-lm ties the output to the embeddings even where the files hold an output matrix."""
    if "tie_word_embeddings" in known and "tie_word_embeddings" not in config and "lm_head.weight" in tensors:
        return {"tie_word_embeddings": (False, "the weights, which hold lm_head.weight")}
    return {}
