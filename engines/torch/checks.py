"""Refuses what transformers would misread in a config.json, and what this engine would compute wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from transformers import PreTrainedConfig

from engines.attention import attention_refusal
from engines.cards import other_layers
from engines.contract import LoadSpec
from engines.refusals import COMPARED, EXPERTS, conflict, experts_said, refused

_ROPE = ("rope_theta", "partial_rotary_factor")


def verify(said: Mapping[str, Any], took: PreTrainedConfig) -> None:
    """Compare what transformers took with what config.json says. Raises `LoadError` on a difference."""
    nested = said.get("rope_parameters")
    rope = cast("dict[str, Any]", nested) if isinstance(nested, dict) else {}
    for key in _ROPE:
        one, other = said.get(key), rope.get(key)
        if one is not None and other is not None and one != other:
            raise conflict(key, one, f"rope_parameters.{key}", other)
    experts_said(said)
    for key in COMPARED:
        wanted = said.get(key, rope.get(key) if key in _ROPE else None)
        found = _taken(key, took)
        if wanted is not None and found is not None and wanted != found:
            raise refused(
                "config_misread",
                f"config.json says {key} = {wanted}, but transformers took {found}: the model would answer "
                "wrongly. Use another engine.",
            )


def _taken(key: str, config: PreTrainedConfig) -> Any:
    """What transformers took; experts may have another name there, RoPE's values a place of their own."""
    if key in _ROPE:
        rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
        return rope.get(key)
    names = EXPERTS if key in EXPERTS else (key,)
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def check_supported(config: PreTrainedConfig, spec: LoadSpec) -> None:
    """Raises `LoadError` for a model or placement that this engine would compute wrongly."""
    if spec.card.quantization is not None or getattr(config, "quantization_config", None):
        raise refused(
            "quantization_unsupported",
            f"The torch engine does not read quantized weights, which {spec.card.model_id} has; use another "
            "engine.",
        )
    if (spec.start_layer, spec.end_layer) != (0, spec.card.n_layers):
        raise refused(
            "wrong_layers",
            f"The placement wants layers {spec.start_layer} to {spec.end_layer}, the model has "
            f"{spec.card.n_layers}, and each rank of the torch engine computes all of them.",
        )
    said: Any = config
    others = other_layers({"layer_types": getattr(said, "layer_types", None)})
    window = getattr(said, "sliding_window", None) or 0
    read = msgspec.structs.replace(spec.card, window=window, other_layers=others)
    if refusal := attention_refusal(read, spec.context):  # of what was read: the card may know less
        raise refused("attention_unsupported", f"{refusal}.")
