"""What is read of a request, what is passed over, and what is refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.decoding import decode_body
from api.errors import ApiError
from api.openai.prompts import chat_prompt, text_prompts
from api.openai.refusals import check_chat, check_text
from api.openai.sampling import chat_sampling, choices, text_sampling
from api.openai.schema import ChatCompletionRequest, CompletionRequest

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"model": "m", "messages": HELLO, **fields}
    request = decode_body(json.dumps(body).encode(), ChatCompletionRequest)
    assert isinstance(request, ChatCompletionRequest)
    return request


def text(**fields: Any) -> CompletionRequest:
    request = decode_body(json.dumps({"model": "m", "prompt": "p", **fields}).encode(), CompletionRequest)
    assert isinstance(request, CompletionRequest)
    return request


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": 1}]}, "messages[0].role"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"max_tokens": "12"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"model": None}, "model"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    error = caught.value.body.error
    assert (caught.value.status, error.param, error.type) == (400, param, "invalid_request_error")
    assert f"`$.{param}`" in error.message


@pytest.mark.parametrize("body", [b"", b"  ", b"{", b'{"model": "\xff"}', b"[" * 100_000, b'"text"', b"null"])
def test_what_is_no_json_object(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        decode_body(body, ChatCompletionRequest)
    assert caught.value.status == 400
    assert caught.value.body.error.message.endswith(".")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": -1}, "presence_penalty"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"top_k": 40}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_would_change_the_answer_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_chat(chat(**fields))
    assert (caught.value.status, caught.value.body.error.param) == (400, param)


@pytest.mark.parametrize("fields", [{"echo": True}, {"best_of": 2}, {"suffix": "end"}])
def test_text_fields_that_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        check_text(text(**fields))
    assert caught.value.body.error.param == next(iter(fields))


def test_what_real_clients_send_is_taken() -> None:
    request = chat(
        user="someone",
        metadata={"a": "b"},
        store=False,
        parallel_tool_calls=True,
        service_tier="auto",
        prompt_cache_key="key",
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        response_format={"type": "text"},
        tool_choice="auto",
        logit_bias={},
        frequency_penalty=0,
        presence_penalty=0.0,
        top_k=-1,
        modalities=["text"],
        temperature=None,
        top_p=None,
        max_tokens=None,
        stop=None,
        seed=None,
        logprobs=None,
        tools=None,
    )
    check_chat(request)
    sampling = chat_sampling(request)
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (1.0, 1.0, 0)
    assert (sampling.seed, sampling.stop, sampling.logprobs) == (None, [], -1)
    check_text(text(best_of=1, echo=False, suffix=None))


def test_sampling() -> None:
    sampling = chat_sampling(
        chat(
            max_tokens=7, max_completion_tokens=9, top_p=0, temperature=0.5, seed=-1, stop="x", logprobs=True
        )
    )
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0.0, 1.0)
    assert (sampling.seed, sampling.stop, sampling.logprobs) == (2**63 - 1, ["x"], 0)
    assert chat_sampling(chat(logprobs=True, top_logprobs=3)).logprobs == 3
    assert text_sampling(text()).max_tokens == 16
    assert text_sampling(text(logprobs=0)).logprobs == 0


def test_messages_for_the_template() -> None:
    history = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "content": "ok", "tool_call_id": "1"},
    ]
    prompt = chat_prompt(
        chat(messages=history, tools=[{"type": "function"}], chat_template_kwargs={"enable_thinking": False})
    )
    system, call, result = prompt.messages
    assert system["role"] == "system"
    assert call["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    ]
    assert result == {"role": "tool", "content": "ok", "tool_call_id": "1"}
    assert prompt.tools == [{"type": "function"}]
    assert prompt.template_options == {"enable_thinking": False}
    assert chat_prompt(chat(tools=[{"type": "function"}], tool_choice="none")).tools == ()


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "input_audio"}, {"type": "text"}]
)
def test_parts_that_are_no_text(part: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        chat_prompt(chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]))
    assert caught.value.body.error.param == "messages[0].content[1]"


def test_the_tokenizer_can_not_be_steered_from_outside() -> None:
    with pytest.raises(ApiError, match="tokenize"):
        chat_prompt(chat(chat_template_kwargs={"tokenize": False}))


def test_text_prompts() -> None:
    assert [p.text for p in text_prompts(text(prompt=["a", "b"]))] == ["a", "b"]
    assert [list(p.tokens) for p in text_prompts(text(prompt=[1, 2]))] == [[1, 2]]
    assert [list(p.tokens) for p in text_prompts(text(prompt=[[1], [2, 3]]))] == [[1], [2, 3]]


@pytest.mark.parametrize("prompt", [[], ["a", 1], [[]], [[1], []], ["a"] * 129, [-1]])
def test_prompts_that_make_no_sense(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        text_prompts(text(prompt=prompt))
    assert caught.value.status == 400


def test_too_many_choices() -> None:
    assert choices(text(n=4), 32) == 128
    with pytest.raises(ApiError, match="132 choices"):
        choices(text(n=4), 33)
