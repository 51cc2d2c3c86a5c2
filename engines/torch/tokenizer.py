"""A transformers tokenizer as `engines.prompts` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import tokenizers
from transformers import AutoTokenizer


class TorchTokenizer:
    """Implements `engines.prompts.HubTokenizer`."""

    def __init__(self, path: Path, eos: object) -> None:
        """Load it; ``eos`` is config's eos_token_id (int, list or None), else it is the tokenizer's own."""
        made: Any = AutoTokenizer
        self._tokenizer: Any = made.from_pretrained(path)
        self.backend_tokenizer = cast("tokenizers.Tokenizer", self._tokenizer.backend_tokenizer)
        self.has_chat_template = bool(self._tokenizer.chat_template)
        self.bos_token: str | None = self._tokenizer.bos_token
        self.eos_token_ids = _ids(self._tokenizer.eos_token_id if eos is None else eos)

    def apply_chat_template(self, messages: object, **options: object) -> list[int]:
        """Render and tokenize a chat. Raises whatever the template raises."""
        return self._tokenizer.apply_chat_template(messages, **{**options, "return_dict": False})

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenize a text."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _ids(eos: object) -> set[int]:
    if eos is None:
        return set()
    return set(cast("list[int]", eos)) if isinstance(eos, list) else {cast("int", eos)}
