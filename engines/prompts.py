"""From a prompt to tokens: chat messages, chat template, tokenizer, length. Far from the computing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol, cast

import tokenizers

from engines.contract import Prompt, Refused
from events.values import Cause, Sampling

_ROOMY = 16
"""Characters of a token; texts have 3 to 5, and only what is all white space or one letter has more."""


class HubTokenizer(Protocol):
    """A transformers tokenizer in an engine's wrapper, as far as we use it."""

    has_chat_template: bool
    eos_token_ids: set[int]
    bos_token: str | None
    backend_tokenizer: tokenizers.Tokenizer

    def apply_chat_template(self, messages: object, **options: object) -> Any:
        """Render and tokenize a chat. Raises whatever the template raises."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenize a text."""
        ...


class Prompts:
    """Prepares prompts for one loaded model. Thread-safe."""

    def __init__(self, tokenizer: HubTokenizer, *, vocab_size: int, context: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._context = context
        self._lock = threading.Lock()  # a fast tokenizer must not be entered by two threads
        self._last: tuple[Prompt, list[int] | Cause] | None = None

    def prepare(self, prompt: Prompt, sampling: Sampling) -> list[int]:
        """Tokens of the prompt. Raises `Refused`. Choices of one request share the work."""
        with self._lock:
            if self._last is None or self._last[0] != prompt:
                self._last = prompt, self._outcome(prompt)
            outcome = self._last[1]
        if isinstance(outcome, Cause):
            raise Refused(outcome)
        tokens = list(outcome)
        if not tokens:
            raise invalid_prompt("The prompt is empty: it has no tokens to continue.")
        if len(tokens) + max(1, sampling.max_tokens) > self._context:
            raise too_long(len(tokens), sampling.max_tokens, self._context)
        self._check_known(tokens)
        return tokens

    def _outcome(self, prompt: Prompt) -> list[int] | Cause:
        try:
            return self._tokens(prompt)
        except Refused as refused:
            return refused.cause

    def _tokens(self, prompt: Prompt) -> list[int]:
        if prompt.kind == "chat":
            return self._chat(prompt)
        if prompt.tokens:
            return list(prompt.tokens)
        self._refuse_endless(prompt.text)
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
            if len(str((messages, tools, options))) > self._context * _ROOMY:
                text = self._tokenizer.apply_chat_template(messages, tools=tools, **options, tokenize=False)
                self._refuse_endless(text)
            rendered: object = self._tokenizer.apply_chat_template(messages, tools=tools, **options)
        except Refused:
            raise
        except Exception as error:  # templates are programs of the model's author and raise anything
            raise invalid_prompt(f"The model's chat template refused the messages: {error}.") from error
        return list(cast("list[int]", rendered))

    def _refuse_endless(self, text: str) -> None:
        """Raises `Refused` where a beginning of the text is far too long already.

        To tokenize 30 MB takes 20 s, in which no other prompt is prepared and no answer cancelled.
        """
        size = self._context * _ROOMY
        while size < len(text):
            if len(self._tokenizer.encode(text[:size], add_special_tokens=False)) > 2 * self._context:
                raise too_long(2 * self._context, 0, self._context, more=True)
            size *= 2

    def _check_known(self, tokens: list[int]) -> None:
        """Raises `Refused` for a token without an embedding; some tokenizers make more than the model has."""
        for token in (min(tokens), max(tokens)):
            if not 0 <= token < self._vocab_size:
                raise invalid_prompt(
                    f"Token {token} is not in the vocabulary: ids go from 0 to {self._vocab_size - 1}."
                )


def invalid_prompt(message: str) -> Refused:
    """The refusal of a prompt, with a sentence for the client."""
    return Refused(Cause(code="invalid_prompt", message=message))


def too_long(prompt_tokens: int, max_tokens: int, context: int, *, more: bool = False) -> Refused:
    """The refusal of a prompt that leaves no room; clients look for "context length" in the text.

    With ``more`` the prompt was not counted to its end.
    """
    counted = f"more than {prompt_tokens}" if more else f"{prompt_tokens}"
    asked = f" and an answer of up to {max_tokens}" if max_tokens else ""
    return Refused(
        Cause(
            code="context_length_exceeded",
            message=(
                f"The maximum context length is {context} tokens, but the prompt has {counted}{asked}: "
                "shorten the prompt, lower max_tokens, or place the model with a longer context."
            ),
            detail={"prompt_tokens": prompt_tokens, "max_tokens": max_tokens, "context": context},
        )
    )


def template_messages(messages: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Messages with plain string contents. Raises `Refused` for what is not a chat of texts."""
    if not messages:
        raise invalid_prompt("messages is empty: send at least one message.")
    return [_message(i, message) for i, message in enumerate(messages)]


def _message(i: int, message: dict[str, object]) -> dict[str, object]:
    if not isinstance(message.get("role"), str):
        raise invalid_prompt(f"messages[{i}] has no role: it must be a string such as 'user'.")
    return {**message, "content": _content(i, message.get("content"))}


def _content(i: int, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(i, part) for part in cast("list[object]", content))
    raise invalid_prompt(f"messages[{i}].content must be a string or a list of text parts.")


def _part(i: int, part: object) -> str:
    fields = cast("dict[str, object]", part) if isinstance(part, dict) else {}
    text = fields.get("text")
    if fields.get("type") != "text" or not isinstance(text, str):
        raise invalid_prompt(f"messages[{i}].content has a part that is not text; the model reads text only.")
    return text
