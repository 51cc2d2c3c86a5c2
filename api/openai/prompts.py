"""From a request's messages or prompts to what the engine continues."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from api.errors import invalid
from api.openai.schema import MAX_CHOICES, ChatCompletionRequest, ChatMessage, CompletionRequest, ToolCall
from engines.contract import Prompt

_RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of the tokenizer's call itself, which a client must not set."""


def chat_prompt(request: ChatCompletionRequest) -> Prompt:
    """The messages and tools in the form that chat templates read. Raises `ApiError` (400)."""
    offered = request.tools if request.tool_choice != "none" else None
    return Prompt(
        kind="chat",
        messages=[_message(i, message) for i, message in enumerate(request.messages)],
        tools=offered or (),
        template_options=_template_options(request),
    )


def text_prompts(request: CompletionRequest) -> list[Prompt]:
    """One prompt per text or list of token ids. Raises `ApiError` (400) for a mixture."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [Prompt(kind="completion", text=prompt)]
    if not prompt:
        raise invalid("prompt is an empty list.", param="prompt")
    if all(isinstance(part, int) for part in prompt):
        return [Prompt(kind="completion", tokens=cast("list[int]", prompt))]
    if len(prompt) > MAX_CHOICES:
        raise invalid(f"prompt has {len(prompt)} entries; at most {MAX_CHOICES} are taken.", param="prompt")
    if all(isinstance(part, str) for part in prompt):
        return [Prompt(kind="completion", text=part) for part in cast("list[str]", prompt)]
    if all(isinstance(part, list) and part for part in prompt):
        return [Prompt(kind="completion", tokens=part) for part in cast("list[list[int]]", prompt)]
    raise invalid(
        "prompt must be a text, a list of texts, a list of token ids, or a list of such lists, none empty.",
        param="prompt",
    )


def _message(index: int, message: ChatMessage) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(message)
    if message.role == "developer":  # OpenAI's newer name of the role that templates call system
        fields["role"] = "system"
    if isinstance(message.content, list):
        _check_parts(index, message)
    if message.tool_calls is not None:
        fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return fields


def _check_parts(index: int, message: ChatMessage) -> None:
    for i, part in enumerate(message.content or ()):
        if isinstance(part, str) or part.type != "text" or part.text is None:
            kind = part if isinstance(part, str) else part.type
            raise invalid(
                f"A part of type {kind!r} can't be read; the models here read 'text' parts only.",
                param=f"messages[{index}].content[{i}]",
                code="unsupported_value",
            )


def _tool_call(call: ToolCall) -> dict[str, object]:
    """Templates write the arguments as JSON themselves, so they take them decoded."""
    try:
        arguments: object = msgspec.json.decode(call.function.arguments)
    except (msgspec.DecodeError, RecursionError):
        arguments = call.function.arguments
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.function.name, "arguments": arguments},
    }


def _template_options(request: ChatCompletionRequest) -> dict[str, object]:
    options: dict[str, Any] = dict(request.chat_template_kwargs or {})
    reserved = sorted(options.keys() & _RESERVED)
    if reserved:
        raise invalid(f"{', '.join(reserved)} can't be set from outside.", param="chat_template_kwargs")
    if request.reasoning_effort is not None:
        options["reasoning_effort"] = request.reasoning_effort
    return options
