"""tokenizer.json, its settings, chat template and end tokens from the tokenizer inside a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engines.gguf_fields import Fields
from engines.model_errors import StoreError, refusal

CONTROL, USER_DEFINED = 3, 4
"""Token types (llama.h) that are matched in the text before the BPE sees it."""

_IDS = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {"llama-bpe": _WORDS + r"\p{N}{1,3}" + _REST, "qwen2": _WORDS + r"\p{N}" + _REST}
"""Pre-tokenizers by GGUF's name for them (llama-vocab.cpp), as the models' own tokenizer.json have them."""

_BEGINS_WITH_BOS = frozenset({"llama-bpe"})
"""Pre-tokenizers with which a text begins with bos where the file does not say so (llama-vocab.cpp)."""


def write(fields: Fields, destination: Path, *, max_length: int) -> None:
    """Write the tokenizer's files into ``destination``. Raises `StoreError` for kinds not known exactly."""
    build(fields).save(str(destination / "tokenizer.json"))
    tokens = fields.texts("tokenizer.ggml.tokens")
    names = {f"{name}_token": tokens[number] for name, number in _ids(fields).items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        **names,
    }
    _write_json(destination / "tokenizer_config.json", config)
    _write_json(destination / "generation_config.json", special_ids(fields))
    if "tokenizer.chat_template" in fields:
        template = fields.text("tokenizer.chat_template")
        (destination / "chat_template.jinja").write_text(template, encoding="utf-8")


def special_ids(fields: Fields) -> dict[str, object]:
    """Ids of bos, pad and eos for config.json; eos is a list where turns and texts end differently."""
    ids = _ids(fields)
    found: dict[str, object] = {f"{name}_token_id": n for name, n in ids.items() if name != "unk"}
    turn_end = fields.integer("tokenizer.ggml.eot_token_id", ids.get("eos", -1))
    if "eos" in ids and turn_end != ids["eos"]:
        found["eos_token_id"] = [ids["eos"], turn_end]
    return found


def build(fields: Fields) -> Tokenizer:
    """The tokenizer itself. Raises `StoreError` where the GGUF names a kind that is not known here."""
    if (kind := fields.text("tokenizer.ggml.model")) != "gpt2":
        raise _refused(f"tokenizer '{kind}'")
    pre = fields.text("tokenizer.ggml.pre", "default")
    tokens = fields.texts("tokenizer.ggml.tokens")
    first, second = zip(*(merge.split(" ") for merge in fields.texts("tokenizer.ggml.merges")), strict=True)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = list(zip(first, second, strict=True))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(fields, tokens)
    _add_special(tokenizer, tokens, fields.integers("tokenizer.ggml.token_type"))
    return tokenizer


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    if name in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, to_bytes])
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if name in ("gpt-2", "default"):
        return words
    raise _refused(f"pre-tokenizer '{name}'")


def _post_processor(fields: Fields, tokens: list[str]) -> processors.PostProcessor:
    bos_unsaid = fields.text("tokenizer.ggml.pre", "default") in _BEGINS_WITH_BOS
    if not fields.flag("tokenizer.ggml.add_bos_token", bos_unsaid):
        return processors.ByteLevel(trim_offsets=False)
    number = fields.integer("tokenizer.ggml.bos_token_id")
    bos = tokens[number]
    template = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, number)])
    return processors.Sequence([processors.ByteLevel(trim_offsets=False), template])


def _add_special(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            added = AddedToken(token, special=kind == CONTROL, normalized=False)
            tokenizer.add_tokens([added])  # pyright: ignore[reportUnknownMemberType]


def _ids(fields: Fields) -> dict[str, int]:
    keys = {name: f"tokenizer.ggml.{long}_token_id" for name, long in _IDS.items()}
    return {name: fields.integer(key) for name, key in keys.items() if key in fields}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _refused(what: str) -> StoreError:
    message = f"This GGUF file's {what} can't be rebuilt exactly. Use the model's safetensors files instead."
    return StoreError(refusal("gguf_unsupported", message))
