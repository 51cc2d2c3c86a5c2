"""From a request's fields to how tokens are drawn."""

from __future__ import annotations

from api.errors import invalid
from api.openai.schema import MAX_CHOICES, ChatCompletionRequest, CompletionRequest, Generative
from events.commands import SamplingRequest

TEXT_MAX_TOKENS = 16
"""OpenAI's default of a text completion, which many base models would never end."""

_NON_NEGATIVE = 2**63 - 1


def chat_sampling(request: ChatCompletionRequest) -> SamplingRequest:
    """Sampling of a chat completion."""
    wanted = (request.top_logprobs or 0) if request.logprobs else -1
    return _sampling(request, request.max_completion_tokens or request.max_tokens or 0, wanted)


def text_sampling(request: CompletionRequest) -> SamplingRequest:
    """Sampling of a text completion."""
    wanted = -1 if request.logprobs is None else request.logprobs
    return _sampling(request, request.max_tokens or TEXT_MAX_TOKENS, wanted)


def choices(request: Generative, prompts: int) -> int:
    """Number of choices in all. Raises `ApiError` (400) where they are too many."""
    count = (request.n or 1) * prompts
    if count > MAX_CHOICES:
        raise invalid(
            f"n = {request.n} for {prompts} prompts makes {count} choices; at most {MAX_CHOICES} are taken.",
            param="n",
        )
    return count


def _sampling(request: Generative, max_tokens: int, logprobs: int) -> SamplingRequest:
    temperature = 1.0 if request.temperature is None else request.temperature
    top_p = 1.0 if request.top_p is None else request.top_p
    if top_p == 0:  # the smallest nucleus is the likeliest token alone
        temperature, top_p = 0.0, 1.0
    return SamplingRequest(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=None if request.seed is None else request.seed & _NON_NEGATIVE,
        stop=_stops(request),
        logprobs=logprobs,
    )


def _stops(request: Generative) -> list[str]:
    if request.stop is None:
        return []
    return [request.stop] if isinstance(request.stop, str) else list(request.stop)
