"""``POST /v1/completions``."""

from __future__ import annotations

from aiohttp import web

from api.openai.answer import Ask, Choice, answer_stream, answer_whole, target
from api.openai.encoding import Head, TextEncoder
from api.openai.logprobs import text_logprobs
from api.openai.prompts import text_prompts
from api.openai.refusals import check_size, check_text
from api.openai.sampling import choices, text_sampling
from api.openai.schema import CompletionRequest, TextChoice, TextCompletion, UsageAnswer
from api.routes import Call


async def completions(call: Call[CompletionRequest, None]) -> TextCompletion | web.StreamResponse:
    """Continue texts or token ids.

    Choices come prompt by prompt: the n of the first prompt, then those of the second. ``stream`` is as it
    is for chats.
    """
    body = call.body
    check_text(body)
    prompts = text_prompts(body)
    count = choices(body, len(prompts))
    copies = count // len(prompts)
    await check_size(call.request, copies)
    model_id, instance_id = target(call.gateway, body.model)
    ask = Ask(
        model_id=model_id,
        instance_id=instance_id,
        kind="completion",
        prompts=[prompt for prompt in prompts for _ in range(copies)],
        copies=copies,
        sampling=text_sampling(body),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    if body.stream:
        return await answer_stream(call.request, call.gateway, ask, TextEncoder)
    return await answer_whole(call.gateway, ask, _build)


def _build(head: Head, choices: list[Choice], usage: UsageAnswer) -> TextCompletion:
    return TextCompletion(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[
            TextChoice(
                index=index,
                text="".join(choice.text),
                finish_reason=choice.finish_reason,
                logprobs=text_logprobs(choice.logprobs, 0) if choice.logprobs else None,
            )
            for index, choice in enumerate(choices)
        ],
        usage=usage,
    )
