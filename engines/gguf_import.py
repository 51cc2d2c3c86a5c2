"""A GGUF file made into the directory that every engine reads: safetensors, config.json, tokenizer.

Weights are written in float32 whatever their type in the GGUF. A Q4_1 weight is ``scale * q + offset`` with
a half-precision scale and offset: up to 24 significant bits, exact in float32, rounded in bfloat16 (8 bits)
and float16 (11). Rounding turns near ties in greedy decoding: asked for a sentence about the sea, SmolLM2
says "a vast and mysterious realm" in float32 and "a vast, mysterious, and" in bfloat16. The price is disk:
538 MB for SmolLM2-135M instead of 269 MB. An engine may still compute in less.

llama.cpp stores the rows of q and k of the ``llama`` architecture in the order of its own rotary embedding
(pairs interleaved); Hugging Face's order is halves. `unpermute` puts them back (the inverse of `permute`
in convert_hf_to_gguf.py).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

from engines import gguf_tokenizer
from engines.gguf_fields import Fields
from engines.model_errors import FetchCancelled, ModelError, StoreError, refusal

SHARD_BYTES = 2 * 1024**3
"""A weight file's greatest size, and so the memory that an import takes."""

_WIDTH = 4
"""Bytes of a float32."""

Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor to write: its Hugging Face name, and the heads whose rows are to be put back (0: none)."""

    name: str
    source: ReaderTensor
    heads: int

    @property
    def n_bytes(self) -> int:
        return int(self.source.n_elements) * _WIDTH

    def read(self) -> Floats:
        """The tensor in float32, rows first."""
        data = cast(Floats, gguf.dequantize(self.source.data, self.source.tensor_type))
        shape = tuple(int(n) for n in reversed(self.source.shape))
        data = data.reshape(shape).astype(np.float32, copy=False)
        return np.ascontiguousarray(unpermute(data, self.heads) if self.heads else data)


def import_gguf(path: Path, destination: Path, progress: Progress | None = None) -> None:
    """Write the model in the GGUF file ``path`` into the directory ``destination``, made where missing.

    ``progress(done, total)`` counts bytes written. Raises `StoreError` for a file that is not GGUF, and for
    architectures, tensors, scalings or tokenizers that can't be taken over exactly.
    """
    try:
        _convert(path, destination, progress or (lambda _done, _total: None))
    except (ModelError, FetchCancelled, OSError):
        raise
    except Exception as error:  # the libraries raise whatever a file makes them raise
        raise _broken(path, error) from error


def _convert(path: Path, destination: Path, progress: Progress) -> None:
    reader = _open(path)
    fields = Fields.of(reader)
    config = model_config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    tensors = [_place(tensor, config) for tensor in reader.tensors]
    destination.mkdir(parents=True, exist_ok=True)
    _write_json(destination / "config.json", config)
    _write_weights(tensors, destination, progress)
    gguf_tokenizer.write(fields, destination, max_length=cast(int, config["max_position_embeddings"]))


def weight_bytes(path: Path) -> int:
    """Bytes of the weights that `import_gguf` writes. Raises `StoreError` for a file that is not GGUF."""
    return sum(int(tensor.n_elements) * _WIDTH for tensor in _open(path).tensors)


def unpermute(rows: Floats, heads: int) -> Floats:
    """Rows of a q or k projection (``[heads * head_dim, ...]``) from llama.cpp's order to Hugging Face's."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def model_config(fields: Fields, *, tied: bool) -> dict[str, object]:
    """config.json for a GGUF's metadata.

    ``rope_theta`` stands at the top, where mlx-lm reads it, and in ``rope_parameters``, where transformers 5
    does: each falls back to 10000 in silence where its own is missing.
    """
    kind = fields.text("general.architecture")
    if kind not in _ARCHITECTURES:
        raise _refused(f"its architecture is '{kind}', and only {', '.join(_ARCHITECTURES)} are known")
    hidden, heads = fields.integer(f"{kind}.embedding_length"), fields.integer(f"{kind}.attention.head_count")
    head_dim = fields.integer(f"{kind}.attention.key_length", hidden // heads)
    _check_plain(fields, kind, head_dim)
    theta = fields.number(f"{kind}.rope.freq_base", 10000.0)
    context = fields.integer(f"{kind}.context_length")
    return {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": fields.integer(f"{kind}.feed_forward_length"),
        "num_hidden_layers": fields.integer(f"{kind}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer(f"{kind}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": len(fields.texts("tokenizer.ggml.tokens")),
        "max_position_embeddings": context,
        "rms_norm_eps": fields.number(f"{kind}.attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "dtype": "float32",
        **gguf_tokenizer.special_ids(fields),
    }


def _check_plain(fields: Fields, kind: str, head_dim: int) -> None:
    if fields.integer(f"{kind}.expert_count", 0):
        raise _refused("it is a mixture of experts, whose GGUF layout is not taken over")
    if fields.text(f"{kind}.rope.scaling.type", "none") != "none":
        raise _refused("it scales its rotary embedding, which is not taken over")
    if fields.integer(f"{kind}.rope.dimension_count", head_dim) != head_dim:
        raise _refused("it rotates only a part of each head")


def _open(path: Path) -> GGUFReader:
    try:
        return GGUFReader(path)
    except FileNotFoundError:
        raise StoreError(refusal("model_files_missing", f"There is no file {path}.")) from None
    except (ValueError, IndexError, OSError, KeyError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> StoreError:
    message = f"{path} is not a whole GGUF file ({error}); fetch it again."
    return StoreError(refusal("model_files_broken", message))


def _place(tensor: ReaderTensor, config: Mapping[str, object]) -> _Tensor:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?([a-z_]+)\.(weight|bias)", tensor.name)
    layer, part, suffix = match.groups() if match else (None, "", "")
    target = (_TOP if layer is None else _BLOCK).get(part)
    if target is None:
        raise _refused(f"its tensor '{tensor.name}' has no place in the model")
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(part, "")
    reorder = cast(int, config[heads]) if heads and config["model_type"] == "llama" else 0
    prefix = "" if layer is None else f"model.layers.{layer}."
    return _Tensor(f"{prefix}{target}.{suffix}", tensor, reorder)


def _write_weights(tensors: list[_Tensor], destination: Path, progress: Progress) -> None:
    shards = list(_shards(tensors))
    total, done = sum(tensor.n_bytes for tensor in tensors), 0
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        part = f"-{number:05}-of-{len(shards):05}" if len(shards) > 1 else ""
        name = f"model{part}.safetensors"
        arrays: dict[str, Floats] = {}
        for tensor in shard:
            arrays[tensor.name] = tensor.read()
            done += tensor.n_bytes
            progress(done, total)
        save_file(arrays, destination / name, metadata={"format": "pt"})
        shutil.copymode(destination / "config.json", destination / name)  # save_file's is for its owner alone
        places |= dict.fromkeys(arrays, name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        _write_json(destination / "model.safetensors.index.json", index)


def _shards(tensors: list[_Tensor]) -> Iterator[list[_Tensor]]:
    shard: list[_Tensor] = []
    for tensor in tensors:
        if shard and sum(other.n_bytes for other in shard) + tensor.n_bytes > SHARD_BYTES:
            yield shard
            shard = []
        shard.append(tensor)
    yield shard


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _refused(reason: str) -> StoreError:
    message = f"This GGUF file can't be imported: {reason}. Use the model's safetensors files instead."
    return StoreError(refusal("gguf_unsupported", message))
