"""Fields that would change the answer and can't be honoured are refused, never passed over in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from aiohttp import web

from api.errors import ApiError, invalid
from api.openai.schema import ChatCompletionRequest, CompletionRequest, Generative, ResponseFormat
from api.routes import MAX_BODY

MAX_COPIES = 4 * MAX_BODY
"""Bytes of a request's prompts: each choice has its own copy on the way to a runner."""


class Rule(NamedTuple):
    """When a given value asks for nothing, and what to say where it does."""

    neutral: Callable[[Any], bool]
    say: str


def _among(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


def _empty(value: Any) -> bool:
    return not value


def _never(value: Any) -> bool:  # noqa: ARG001
    return False


def _is_text(form: ResponseFormat) -> bool:
    return form.type == "text"


_SAMPLERS = "temperature, top_p and seed are what shapes sampling here"

_COMMON: dict[str, Rule] = {
    "frequency_penalty": Rule(_among(0), f"Penalties are not served: {_SAMPLERS}."),
    "presence_penalty": Rule(_among(0), f"Penalties are not served: {_SAMPLERS}."),
    "repetition_penalty": Rule(_among(1), f"Penalties are not served: {_SAMPLERS}."),
    "logit_bias": Rule(_empty, f"A bias on tokens is not served: {_SAMPLERS}."),
    "top_k": Rule(_among(0, -1), f"top_k is not served: {_SAMPLERS}."),
    "min_p": Rule(_among(0), f"min_p is not served: {_SAMPLERS}."),
}

_CHAT: dict[str, Rule] = {
    "tool_choice": Rule(
        _among("auto", "none"),
        "Only tool_choice 'auto' and 'none' are served: no call can be forced, since the model's answer "
        "comes back as text.",
    ),
    "response_format": Rule(
        _is_text,
        "Only response_format {'type': 'text'} is served: no grammar constrains the answer.",
    ),
    "modalities": Rule(_among(["text"], []), "The models here answer in text only."),
    "audio": Rule(_empty, "The models here answer in text only."),
    "functions": Rule(_empty, "functions is OpenAI's old form; send tools instead."),
    "function_call": Rule(_among("auto", "none"), "function_call is OpenAI's old form; send tools instead."),
    "web_search_options": Rule(_never, "There is no web search here."),
    "verbosity": Rule(_among("medium"), "verbosity is not served; ask for it in the messages."),
}

_TEXT: dict[str, Rule] = {
    "echo": Rule(_empty, "echo is not served; put the prompt before the answer yourself."),
    "best_of": Rule(_among(0, 1), "best_of is not served; ask for n answers with logprobs and choose."),
    "suffix": Rule(_empty, "suffix is not served; the models here continue a text, they don't fill it in."),
}


def check_chat(request: ChatCompletionRequest) -> None:
    """Raise `ApiError` (400) for what a chat completion can't honour."""
    _check(request, _COMMON)
    _check(request, _CHAT)
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs needs logprobs to be true.", param="top_logprobs")


def check_text(request: CompletionRequest) -> None:
    """Raise `ApiError` (400) for what a text completion can't honour."""
    _check(request, _COMMON)
    _check(request, _TEXT)


async def check_size(request: web.Request, copies: int) -> None:
    """Raise `ApiError` (413) where the choices' copies of the prompts are too large together."""
    size = copies * len(await request.read())
    if size > MAX_COPIES:
        message = (
            f"{copies} choices of this request have prompts of {size >> 20} MiB together; at most "
            f"{MAX_COPIES >> 20} MiB are taken. Ask for fewer choices."
        )
        raise ApiError(413, message, param="n", code="body_too_large")


def _check(request: Generative, rules: Mapping[str, Rule]) -> None:
    for field, rule in rules.items():
        value = getattr(request, field)
        if value is not None and not rule.neutral(value):
            raise invalid(rule.say, param=field, code="unsupported_value")
