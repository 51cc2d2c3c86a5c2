"""From a prompt to tokens: chat template, tokenizer, length. Thread-safe, and far from the computing."""

from __future__ import annotations

import threading
from typing import cast

from engines.contract import Prompt
from engines.mlx.library import HubTokenizer
from engines.prompts import invalid_prompt, template_messages, too_long
from events.values import Sampling


class Prompts:
    """Prepares prompts for one loaded model."""

    def __init__(self, tokenizer: HubTokenizer, *, vocab_size: int, context: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._context = context
        self._lock = threading.Lock()  # a fast tokenizer must not be entered by two threads

    def prepare(self, prompt: Prompt, sampling: Sampling) -> list[int]:
        """Tokens of the prompt. Raises `Refused`."""
        with self._lock:
            tokens = self._tokens(prompt)
        if not tokens:
            raise invalid_prompt("The prompt is empty: it has no tokens to continue.")
        if len(tokens) + max(1, sampling.max_tokens) > self._context:
            raise too_long(len(tokens), sampling.max_tokens, self._context)
        return tokens

    def _tokens(self, prompt: Prompt) -> list[int]:
        if prompt.kind == "chat":
            return self._chat(prompt)
        if prompt.tokens:
            return self._given(list(prompt.tokens))
        bos = self._tokenizer.bos_token
        return self._tokenizer.encode(
            prompt.text, add_special_tokens=bos is None or not prompt.text.startswith(bos)
        )

    def _chat(self, prompt: Prompt) -> list[int]:
        messages = template_messages(prompt.messages)
        if not self._tokenizer.has_chat_template:
            raise invalid_prompt("This model has no chat template: use a text completion instead.")
        options = {"add_generation_prompt": True, **prompt.template_options}
        tools = list(prompt.tools) or None
        try:
            rendered: object = self._tokenizer.apply_chat_template(messages, tools=tools, **options)
        except Exception as error:  # templates are programs of the model's author and raise anything
            raise invalid_prompt(f"The model's chat template refused the messages: {error}.") from error
        return list(cast("list[int]", rendered))

    def _given(self, tokens: list[int]) -> list[int]:
        for token in tokens:
            if not 0 <= token < self._vocab_size:
                raise invalid_prompt(
                    f"Token {token} is not in the vocabulary: ids go from 0 to {self._vocab_size - 1}."
                )
        return tokens
