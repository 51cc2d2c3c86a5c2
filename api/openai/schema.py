"""Bodies of OpenAI's chat and text completions: what is read of a request, what an answer holds.

Fields that nobody declares here are passed over, since real clients send many. Fields that would change the
answer and can't be honoured are declared, so that `api.openai.refusals` can refuse them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.decoding import Name
from events.values import FinishReason

MAX_CHOICES = 128
"""Choices of one request: n, times the prompts of a text completion."""
_MAX_SEED = 2**63 - 1

Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Seed = Annotated[int, Meta(ge=-_MAX_SEED - 1, le=_MAX_SEED)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]
Stops = Annotated[list[StopText], Meta(max_length=4)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None
    """Send the usage in a last chunk that has no choices."""


class Generative(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and text completions have in common."""

    model: Name
    """Id of a model; or of an instance, where one of several is meant."""
    temperature: Temperature | None = None
    top_p: Share | None = None
    n: Count | None = None
    seed: Seed | None = None
    stop: StopText | Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Refused where they would change the answer.
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message; the models here read ``type: text``."""

    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the assistant called, with its arguments as JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in the history of a chat."""

    function: FunctionCall
    id: str = ""
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of the chat. The model's template decides which roles there are."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted form of the answer; only ``text`` is served."""

    type: str


class ChatCompletionRequest(Generative, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    """Most tokens of an answer; without it, all the room that the context has. Goes before max_tokens."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    """Shown to the model by its chat template. What it answers comes back as text."""
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    """Given to the chat template, as is ``chat_template_kwargs``."""
    chat_template_kwargs: dict[str, Any] | None = None
    # Refused where they would change the answer.
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    verbosity: str | None = None


class CompletionRequest(Generative, frozen=True, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | TokenId | list[TokenId]]
    """A text, several texts, the token ids of one prompt, or those of several."""
    max_tokens: Tokens | None = None
    """16 where nothing else is said, as OpenAI has it."""
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    # Refused where they would change the answer.
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class UsageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request; a prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob, frozen=True, kw_only=True):
    """A drawn token, with the likeliest ones at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities of a choice, or of a chunk of it."""

    content: list[ChatLogprob]
    refusal: None = None


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the n answers."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a chat completion that is not streamed."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    object: Literal["chat.completion"] = "chat.completion"


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds: the role in the first one, then text, nothing in the last one."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk's part of one of the n answers."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat completion; ``choices`` is empty where it carries the usage."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageAnswer | msgspec.UnsetType | None = msgspec.UNSET


class TextLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities of a text completion; ``text_offset`` counts characters from its start."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or a chunk's part of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReason | None = None


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a text completion, or one event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: UsageAnswer | msgspec.UnsetType | None = msgspec.UNSET
