"""A tiny llama in a GGUF file, quantized as llama.cpp would."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from support.tiny import tiny_tokenizer

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2
KV = KV_HEADS * HEAD_DIM
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    block = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (KV, HIDDEN),
        "attn_v": (KV, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }
    layers = {f"blk.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in block.items()}
    return {"token_embd.weight": (vocabulary, HIDDEN), "output_norm.weight": (HIDDEN,), **layers}


def write_gguf(
    path: Path, arch: str = "llama", *, extra: dict[str, np.ndarray] | None = None, **fields: object
) -> Path:
    """A tiny model with random weights: Q4_1 and Q8_0 where llama.cpp would quantize, F32 elsewhere."""
    tokenizer = tiny_tokenizer()
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer = GGUFWriter(path, arch)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_tokenizer_model(str(fields.pop("tokenizer", "gpt2")))
    writer.add_tokenizer_pre(str(fields.pop("pre", "smollm")))
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(TEMPLATE)
    for key, value in fields.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_string)(key.replace("__", "."), value)  # type: ignore[arg-type]
    random = np.random.default_rng(1)
    for name, shape in {**shapes(len(tokens)), **{n: t.shape for n, t in (extra or {}).items()}}.items():
        data = random.standard_normal(shape).astype(np.float32)
        kind = GGMLQuantizationType.F32
        if len(shape) == 2:
            kind = GGMLQuantizationType.Q8_0 if name == "token_embd.weight" else GGMLQuantizationType.Q4_1
            data = gguf.quantize(data, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
