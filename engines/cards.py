"""`ModelCard` from a model's config.json: the shapes that placement counts memory with.

Families name the same things differently; the names are tried in order. What can't be read without a
guess is refused, and so is a config whose two spellings of one value disagree: each engine reads its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast, get_args

import msgspec

from engines import weights
from engines.experts.families import moe_layers
from engines.model_errors import CardError, StoreError, refusal
from events.values import Dtype, ModelCard, Quantization

Config = Mapping[str, object]

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "multi_query_group_num")
_VOCABULARY = ("vocab_size", "padded_vocab_size")
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")
_FFN = ("moe_intermediate_size", "intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERT_GROUPS = ("n_group",)

_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
_LEFT_OUT: dict[str, Config] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "mistral": {"sliding_window": 4096},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": False},
    "qwen3": {"head_dim": 128, "use_sliding_window": False},
    "qwen3_moe": {"use_sliding_window": False},
}
"""Values that published configs of a family leave out, as transformers' own defaults have them."""

_KEEPING = frozenset({"full_attention", "sliding_attention"})
"""Layers that keep keys and values for each token, as a config's layer_types names them."""

_MOST = 2**40
"""No count in a config.json comes near it."""

_GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_BITS = {"mxfp4": 4, "mxfp8": 8}
"""Quantizations whose name says all: groups of 32 with a shared exponent (OCP Microscaling)."""


def card_from_directory(path: Path, model_id: str | None = None) -> ModelCard:
    """The card of a model on disk; its bytes and parameters come from the headers of its weight files.

    Raises `CardError` for a model that can't be served, `StoreError` for files that are missing or broken.
    """
    name = model_id or path.name
    config = read_config(path)
    held = weights.inspect(path, _quantization(name, config))
    return card_from_config(
        name,
        {"dtype": held.dtype, **config},
        weight_bytes=held.n_bytes,
        n_params=held.n_params,
        has_chat_template=has_chat_template(path),
    )


def card_from_config(
    model_id: str, config: Config, *, weight_bytes: int, n_params: int = 0, has_chat_template: bool
) -> ModelCard:
    """The card that a config.json describes. ``n_params`` of 0 is estimated from ``weight_bytes``.

    Raises `CardError` for a model that can't be served, and for a config that engines read differently.
    """
    shape = _Shape(model_id, _text_config(config))
    _check_generates(model_id, config)
    _check_consistent(model_id, shape.config)
    dtype, quantization = _dtype(model_id, config), _quantization(model_id, config)
    layers = shape.positive("layers", _LAYERS)
    heads = shape.positive("attention heads", _HEADS)
    hidden = shape.positive("hidden size", _HIDDEN)
    return ModelCard(
        model_id=model_id,
        model_type=str(config.get("model_type", "")),
        n_layers=layers,
        hidden_size=hidden,
        n_heads=heads,
        n_kv_heads=_kv_heads(shape, heads),
        head_dim=_head_dim(shape, hidden, heads),
        vocab_size=shape.positive("vocabulary", _VOCABULARY),
        max_context=shape.positive("context length", _CONTEXT),
        dtype=dtype,
        n_params=n_params or _estimated_params(weight_bytes, dtype, quantization),
        weight_bytes=weight_bytes,
        quantization=quantization,
        n_experts=shape.number(_EXPERTS) or 0,
        n_moe_layers=_moe_layers(shape, layers),
        expert_groups=shape.number(_EXPERT_GROUPS) or 1,
        ffn_size=shape.number(_FFN) or 0,
        window=_window(shape),
        other_layers=other_layers(shape.config),
        has_chat_template=has_chat_template,
    )


def read_config(directory: Path) -> dict[str, object]:
    """config.json of a model's directory. Raises `StoreError` where it is missing or not a JSON object."""
    path = directory / "config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except FileNotFoundError:
        message = f"{directory} has no config.json, so it is not a model that can be read."
        raise StoreError(refusal("model_files_missing", message)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreError(refusal("model_files_broken", f"{path} is not a JSON object: {error}.")) from error


def has_chat_template(directory: Path) -> bool:
    """True where the model brings a chat template, in any of the three places that it may stand in."""
    if any((directory / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    path = directory / "tokenizer_config.json"
    try:
        return bool(msgspec.json.decode(path.read_bytes(), type=dict[str, object]).get("chat_template"))
    except (FileNotFoundError, msgspec.DecodeError, RecursionError):
        return False


class _Shape:
    """Whole numbers of a config by any of their names."""

    def __init__(self, model_id: str, config: Config) -> None:
        self.model_id = model_id
        self.config = {**_LEFT_OUT.get(str(config.get("model_type", "")), {}), **config}

    def number(self, names: tuple[str, ...]) -> int | None:
        """The value under the first name that has one. Raises `CardError` where it is no whole number."""
        for name in names:
            value = self.config.get(name)
            if value is not None:
                if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
                    raise _refused(self.model_id, f"its {name} is {value!r}, not a whole number that can be")
                return value
        return None

    def positive(self, what: str, names: tuple[str, ...]) -> int:
        """As `number`, and there must be one. Raises `CardError` saying ``what`` is missing."""
        value = self.number(names)
        if not value:
            raise _refused(self.model_id, f"its config.json gives no {what} ({names[0]})")
        return value


def _kv_heads(shape: _Shape, heads: int) -> int:
    if shape.config.get("kv_lora_rank") is not None:
        reason = "it uses multi-head latent attention, and the size of its cache can't be foreseen yet"
        raise _refused(shape.model_id, reason)
    one = shape.config.get("multi_query") is True and shape.config.get("new_decoder_architecture") is not True
    kv_heads = 1 if one else shape.number(_KV_HEADS) or heads
    if heads % kv_heads:
        raise _refused(shape.model_id, f"its {heads} attention heads can't share {kv_heads} key-value heads")
    return kv_heads


def _head_dim(shape: _Shape, hidden: int, heads: int) -> int:
    explicit = shape.number(("head_dim",))
    if explicit is None and hidden % heads:
        raise _refused(shape.model_id, f"its hidden size {hidden} is not a multiple of its {heads} heads")
    return explicit or hidden // heads


def _window(shape: _Shape) -> int:
    used = shape.config.get("use_sliding_window", True) is True
    return (shape.number(("sliding_window",)) or 0) if used else 0


def other_layers(config: Config) -> list[str]:
    """Kinds of layers that keep no keys and values for each token; Qwen3-Next may give an interval alone."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return sorted({str(kind) for kind in cast("list[object]", kinds)} - _KEEPING)
    return ["linear_attention"] if config.get("full_attention_interval") else []


def _moe_layers(shape: _Shape, layers: int) -> int:
    try:
        return moe_layers(shape.config, layers) if shape.number(_EXPERTS) else 0
    except ValueError as error:
        raise _refused(shape.model_id, str(error)) from None


def _text_config(config: Config) -> Config:
    """A model that also sees keeps the shape of its language part under ``text_config``."""
    inner = config.get("text_config")
    return {**config, **cast(Config, inner)} if isinstance(inner, dict) else config


def _check_generates(model_id: str, config: Config) -> None:
    stated = config.get("architectures")
    names = [str(name) for name in cast("list[object]", stated)] if isinstance(stated, list) else []
    if config.get("is_encoder_decoder") is True or (names and not any(n.endswith(_GENERATES) for n in names)):
        kind = ", ".join(names) or "an encoder-decoder"
        raise _refused(model_id, f"it is {kind}, not a decoder that generates text")
    if "vision_config" in config and "text_config" not in config and not any(k in config for k in _LAYERS):
        raise _refused(model_id, "it is a vision model without a language part")


def _check_consistent(model_id: str, config: Config) -> None:
    """Refuse two spellings of one value that disagree: engines read one of them and never see the other."""
    experts = {name: config[name] for name in _EXPERTS[:2] if config.get(name) is not None}
    _agree(model_id, experts)
    parameters = config.get("rope_parameters")
    nested = cast(Config, parameters).get("rope_theta") if isinstance(parameters, dict) else None
    thetas = {"rope_theta": config.get("rope_theta"), "rope_parameters.rope_theta": nested}
    _agree(model_id, {name: value for name, value in thetas.items() if value is not None})


def _agree(model_id: str, values: Config) -> None:
    if any(value != other for value in values.values() for other in values.values()):
        stated = " and ".join(f"{name} = {value}" for name, value in values.items())
        reason = f"its config.json contradicts itself: {stated}; correct the wrong one"
        raise CardError(refusal("config_contradiction", f"{model_id} can't be served: {reason}."))


def _dtype(model_id: str, config: Config) -> Dtype:
    text = _text_config(config)
    name = text.get("dtype") or text.get("torch_dtype") or "bfloat16"
    if name not in get_args(Dtype):
        raise _refused(model_id, f"its dtype {name} is none of {', '.join(get_args(Dtype))}")
    return cast(Dtype, name)


def _quantization(model_id: str, config: Config) -> Quantization | None:
    stated = config.get("quantization") or _text_config(config).get("quantization_config")
    if not isinstance(stated, dict):
        return None
    values = cast(Config, stated)
    method, bits, group = str(values.get("quant_method") or ""), values.get("bits"), values.get("group_size")
    if method in _BITS:
        return Quantization(bits=_BITS[method], group_size=32)
    plain = method in ("", "awq", "gptq")
    if plain and isinstance(bits, int) and isinstance(group, int) and 0 < bits <= 16 and 0 < group < _MOST:
        return Quantization(bits=bits, group_size=group)
    known = "MLX's, AWQ, GPTQ, mxfp4 and mxfp8 are"
    raise _refused(model_id, f"its quantization {method or dict(values)} is not known here; {known}")


def _estimated_params(weight_bytes: int, dtype: Dtype, quantization: Quantization | None) -> int:
    """Weights alone: a quantized one costs its bits and its share of a group's 16-bit scale and offset."""
    bits = 32.0 if dtype == "float32" else 16.0
    if quantization is not None:
        bits = quantization.bits + 32 / quantization.group_size
    return int(weight_bytes * 8 / bits)


def _refused(model_id: str, reason: str) -> CardError:
    return CardError(refusal("model_not_servable", f"{model_id} can't be served: {reason}."))
