"""A tiny random llama in the Hugging Face layout: real files, real tokenizer, next to no cost.

It writes nonsense, always the same nonsense. Made with numpy, safetensors and tokenizers alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

_BIASED = ("q_proj", "k_proj", "v_proj")
HIDDEN, FFN, HEADS, KV_HEADS, LAYERS, VOCAB = 64, 128, 4, 2, 2, 440

CORPUS = [
    "The prompter keeps the cue book open: every light, every sound and every curtain has its line.",
    "Stand by, cue twelve. Go. The stage is dark, the sea is wide, and nobody speaks before the bell.",
    "Señor Müller naïvely ordered crème brûlée; 東京の空は青い 🙂 και η θάλασσα βαθιά.",
]

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role ' ~ m.role) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_model_dir(
    path: Path,
    *,
    endless: bool = False,
    context: int = 4096,
    seed: int = 7,
    layers: int = LAYERS,
    model_type: str = "llama",
    tied: bool = False,
) -> Path:
    """Write the model to ``path`` and return it. Equal arguments give equal bytes.

    ``endless``: no token ends an answer, so that generation runs up to its token limit. ``model_type``:
    llama or qwen2. ``tied``: the embeddings are the output layer too.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    end = None if endless else tokenizer.token_to_id("<|im_end|>")
    _write(path / "tokenizer_config.json", _tokenizer_config(endless))
    _write(path / "config.json", _config(context, layers, end, model_type, tied))
    _write(path / "generation_config.json", {} if end is None else {"eos_token_id": [end]})
    weights = _weights(seed, layers, biased=model_type == "qwen2")
    if tied:
        del weights["lm_head.weight"]
    save_file(weights, str(path / "model.safetensors"), metadata={"format": "pt"})
    return path


def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer, always the same; most of the model's vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 3,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    return tokenizer


def _tokenizer_config(endless: bool) -> dict[str, object]:
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    return config if endless else config | {"eos_token": "<|im_end|>"}


def _config(context: int, layers: int, end: int | None, model_type: str, tied: bool) -> dict[str, object]:
    return {
        "architectures": [f"{model_type.capitalize()}ForCausalLM"],
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "num_hidden_layers": layers,
        "vocab_size": VOCAB,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "eos_token_id": end,
    }


def _weights(seed: int, layers: int, *, biased: bool) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for i in range(layers):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in _layer().items()}
        if biased:
            biases = {name: shape[:1] for name, shape in _layer().items() if name[-6:] in _BIASED}
            shapes |= {f"model.layers.{i}.{name}.bias": shape for name, shape in biases.items()}
    return {name: _tensor(draw, shape) for name, shape in sorted(shapes.items())}


def _layer() -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    return {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }


def _tensor(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return np.ones(shape, dtype=np.float32)
    return draw.normal(0, 1.5 * shape[-1] ** -0.5, shape).astype(np.float32)


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
