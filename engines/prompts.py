"""Chat messages as clients send them, in the form that chat templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from engines.contract import Refused
from events.values import Cause


def invalid_prompt(message: str) -> Refused:
    """The refusal of a prompt, with a sentence for the client."""
    return Refused(Cause(code="invalid_prompt", message=message))


def too_long(prompt_tokens: int, max_tokens: int, context: int) -> Refused:
    """The refusal of a prompt that leaves no room; clients look for "context length" in the text."""
    asked = f" and an answer of up to {max_tokens}" if max_tokens else ""
    return Refused(
        Cause(
            code="context_length_exceeded",
            message=(
                f"The maximum context length is {context} tokens, but the prompt has {prompt_tokens}{asked}: "
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
