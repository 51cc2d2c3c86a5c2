"""``POST /v1/chat/completions``."""

from __future__ import annotations

from aiohttp import web

from api.openai.answer import Ask, Choice, answer_stream, answer_whole, target
from api.openai.encoding import ChatEncoder, Head
from api.openai.logprobs import chat_logprobs
from api.openai.prompts import chat_prompt
from api.openai.refusals import check_chat, check_size
from api.openai.sampling import chat_sampling, choices
from api.openai.schema import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
    UsageAnswer,
)
from api.routes import Call


async def chat_completions(call: Call[ChatCompletionRequest, None]) -> ChatCompletion | web.StreamResponse:
    """Answer a chat.

    With ``stream`` the answer comes as server-sent events, and the usage with
    ``stream_options.include_usage`` in a last one before ``[DONE]``.
    """
    body = call.body
    check_chat(body)
    count = choices(body, 1)
    await check_size(call.request, count)
    model_id, instance_id = target(call.gateway, body.model)
    ask = Ask(
        model_id=model_id,
        instance_id=instance_id,
        kind="chat",
        prompts=[chat_prompt(body)] * count,
        copies=count,
        sampling=chat_sampling(body),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    if body.stream:
        return await answer_stream(call.request, call.gateway, ask, ChatEncoder)
    return await answer_whole(call.gateway, ask, _build)


def _build(head: Head, choices: list[Choice], usage: UsageAnswer) -> ChatCompletion:
    return ChatCompletion(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[
            ChatChoice(
                index=index,
                message=AssistantMessage(content="".join(choice.text)),
                finish_reason=choice.finish_reason,
                logprobs=chat_logprobs(choice.logprobs) if choice.logprobs else None,
            )
            for index, choice in enumerate(choices)
        ],
        usage=usage,
    )
