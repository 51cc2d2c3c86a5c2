"""One request to the model: created, followed to its end, answered whole or streamed, always closed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from actors.gateway import Gateway
from actors.generation import Generation
from api.answers import encode, json_response
from api.errors import ApiError, error_response, from_cause, from_exception
from api.openai.encoding import DONE, ChunkEncoder, Head
from api.openai.fingerprint import fingerprint
from api.openai.schema import UsageAnswer
from api.sse import EventStream, TooSlow
from engines.contract import Prompt
from engines.wire import Chunk, Logprob
from events.catalogue import TaskCancelled, TaskFailed, TaskFinished
from events.commands import SamplingRequest
from events.ids import fresh
from events.values import Cause, FinishReason, TaskKind, Usage

GONE = "the client disconnected"
BEHIND = "the client read too slowly"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked of the model. ``prompts`` has one prompt a choice; ``copies`` choices share each."""

    model_id: str
    instance_id: str
    """Empty: any instance of the model."""
    kind: TaskKind
    prompts: Sequence[Prompt]
    copies: int
    sampling: SamplingRequest
    include_usage: bool


@dataclass(slots=True)
class Choice:
    """What one task has given so far."""

    text: list[str] = field(default_factory=list[str])
    logprobs: list[Logprob] = field(default_factory=list[Logprob])
    finish_reason: FinishReason = "stop"


def target(gateway: Gateway, name: str) -> tuple[str, str]:
    """The model id and instance id that a request's ``model`` names, which may be either."""
    instance = gateway.state.instances.get(name)
    return (instance.model_id, name) if instance else (name, "")


class Tally:
    """Sums the usage of the tasks of a request; a prompt that several choices share counts once."""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._prompt = 0
        self._completion = 0

    def add(self, index: int, usage: Usage) -> None:
        """Count a finished task."""
        self._completion += usage.completion_tokens
        if index % self._copies == 0:
            self._prompt += usage.prompt_tokens

    @property
    def usage(self) -> UsageAnswer:
        """The sum."""
        total = self._prompt + self._completion
        return UsageAnswer(prompt_tokens=self._prompt, completion_tokens=self._completion, total_tokens=total)


async def answer_whole(
    gateway: Gateway,
    ask: Ask,
    build: Callable[[Head, list[Choice], UsageAnswer], msgspec.Struct],
) -> web.Response:
    """Collect the answer and build its body. Raises `ApiError` where a task fails."""
    generation = await _begin(gateway, ask)
    try:
        head = _head(gateway, generation, ask)
        choices, usage = await _collect(generation, ask)
        response = json_response(build(head, choices, usage))
        response.headers["X-Request-Id"] = generation.request_id
        return response
    finally:
        generation.close(GONE)


async def answer_stream(
    request: web.Request, gateway: Gateway, ask: Ask, encoder: Callable[[Head], ChunkEncoder]
) -> web.StreamResponse:
    """Stream the answer. What fails before the first text is an error status, later an error event."""
    generation = await _begin(gateway, ask)
    reason = GONE
    try:
        encode_chunk = encoder(_head(gateway, generation, ask))
        headers = {"X-Request-Id": generation.request_id}
        async with EventStream(request, preamble=encode_chunk.opening(), headers=headers) as stream:
            try:
                await _pump(generation, stream, encode_chunk, ask)
            except (ConnectionError, TooSlow) as error:
                reason = BEHIND if isinstance(error, TooSlow) else GONE
                _abort(request)
            except Exception as error:
                return await _fail(stream, from_exception(error))
        return stream.response
    finally:
        generation.close(reason)


async def _begin(gateway: Gateway, ask: Ask) -> Generation:
    return await gateway.generate(
        model_id=ask.model_id,
        instance_id=ask.instance_id,
        kind=ask.kind,
        count=len(ask.prompts),
        sampling=ask.sampling,
        prompts=ask.prompts,
        command_id=fresh("generate"),
    )


def _head(gateway: Gateway, generation: Generation, ask: Ask) -> Head:
    prefix = "chatcmpl" if ask.kind == "chat" else "cmpl"
    return Head(
        id=f"{prefix}-{generation.request_id}",
        created=int(time.time()),
        model=ask.model_id,
        system_fingerprint=fingerprint(gateway.state, generation.task_ids),
        choices=len(ask.prompts),
        usage=ask.include_usage,
    )


async def _collect(generation: Generation, ask: Ask) -> tuple[list[Choice], UsageAnswer]:
    choices = [Choice() for _ in ask.prompts]
    tally = Tally(ask.copies)
    async for index, item in generation:
        if isinstance(item, Chunk):
            choices[index].text.append(item.text)
            choices[index].logprobs.extend(item.logprobs)
        elif isinstance(item, TaskFinished):
            choices[index].finish_reason = item.finish_reason
            tally.add(index, item.usage)
        elif isinstance(item, TaskFailed | TaskCancelled):
            raise _failure(item)
    return choices, tally.usage


async def _pump(generation: Generation, stream: EventStream, encoder: ChunkEncoder, ask: Ask) -> None:
    """Write what has come in one go, so that a burst of chunks is one packet."""
    tally = Tally(ask.copies)
    data = b""
    async for index, item in generation:
        if isinstance(item, Chunk):
            data += encoder.text(index, item)
        elif isinstance(item, TaskFinished):
            data += encoder.finish(index, item.finish_reason)
            tally.add(index, item.usage)
        elif isinstance(item, TaskFailed | TaskCancelled):
            raise _failure(item)
        if data and not generation.waiting and not generation.over:
            await stream.send(data)
            data = b""
    if ask.include_usage:
        data += encoder.usage(tally.usage)
    await stream.send(data + DONE)


async def _fail(stream: EventStream, error: ApiError) -> web.StreamResponse:
    """An error status where nothing was sent, else an error event and the end, without [DONE]."""
    if await stream.refuse():
        return error_response(error)
    with contextlib.suppress(ConnectionError, TooSlow):  # nobody is left to tell
        await stream.send(b"data: " + encode(error.body) + b"\n\n")
    return stream.response


def _failure(end: TaskFailed | TaskCancelled) -> ApiError:
    if isinstance(end, TaskFailed):
        return from_cause(end.cause, default=500)
    message = f"The answer was cancelled: {end.reason}."
    return from_cause(Cause(code="cancelled", message=message), default=503)


def _abort(request: web.Request) -> None:
    """Drop the connection with what it has not taken yet."""
    if request.transport is not None:
        request.transport.abort()
