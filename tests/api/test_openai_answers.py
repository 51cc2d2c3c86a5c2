"""OpenAI's own client against a whole node, and every answer against OpenAI's own schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from support.node import ENDLESS, MODEL, LocalNode
from support.openai_answers import assert_openai

HELLO: Any = [{"role": "user", "content": "Stand by, cue twelve."}]


@pytest.fixture(scope="module")
def client(node: LocalNode) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": HELLO, "max_tokens": 24, "temperature": 0, **fields}
    )


def stream_text(client: openai.OpenAI, **fields: Any) -> str:
    return "".join(
        chunk.choices[0].delta.content or "" for chunk in chat(client, stream=True, **fields) if chunk.choices
    )


def events(node: LocalNode, path: str, body: dict[str, Any]) -> list[str]:
    answer = node.call("POST", path, {**body, "stream": True})
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    return [line[6:] for line in answer.body.decode().split("\n") if line.startswith("data: ")]


def test_stream_and_whole_answer_agree(client: openai.OpenAI) -> None:
    whole = chat(client)
    assert stream_text(client) == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24
    assert whole.choices[0].finish_reason == "length"
    assert_openai("CreateChatCompletionResponse", json.loads(whole.to_json()))


def test_eight_at_once_equal_one_alone(client: openai.OpenAI) -> None:
    prompts = [[{"role": "user", "content": f"Cue number {number}"}] for number in range(8)]
    alone = [stream_text(client, messages=prompt) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda prompt: stream_text(client, messages=prompt), prompts))
    assert together == alone
    assert len(set(alone)) > 1


def test_chunks_are_as_openai_says(node: LocalNode) -> None:
    body = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 6,
        "n": 2,
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 2,
    }
    *chunks, end = events(node, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert end == "[DONE]"
    decoded = [json.loads(chunk) for chunk in chunks]
    for chunk in decoded:
        assert_openai("CreateChatCompletionStreamResponse", chunk)
    assert [chunk["choices"][0]["delta"] for chunk in decoded[:2]] == [
        {"role": "assistant", "content": ""}
    ] * 2
    last = decoded.pop()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12
    assert all(chunk["usage"] is None for chunk in decoded)
    assert len({chunk["id"] for chunk in decoded}) == 1
    ends = [c["choices"][0]["index"] for c in decoded if c["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1]


def test_no_usage_unless_asked_for(node: LocalNode) -> None:
    chunks = events(node, "/v1/chat/completions", {"model": MODEL, "messages": HELLO, "max_tokens": 3})
    assert all("usage" not in json.loads(chunk) for chunk in chunks[:-1])


def test_n_choices_and_their_usage(client: openai.OpenAI) -> None:
    answer = chat(client, n=3, temperature=1, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens == 72
    assert answer.usage.prompt_tokens == chat(client).usage.prompt_tokens


def test_seeds(client: openai.OpenAI) -> None:
    first, same, other = (chat(client, temperature=1, seed=seed) for seed in (1, 1, 2))
    assert first.choices[0].message.content == same.choices[0].message.content
    assert first.choices[0].message.content != other.choices[0].message.content
    assert first.system_fingerprint == same.system_fingerprint
    unseeded = {chat(client, temperature=1).choices[0].message.content for _ in range(3)}
    assert len(unseeded) > 1


def test_logprobs(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=5)
    rows = answer.choices[0].logprobs.content
    assert len(rows) == 5
    for row in rows:
        assert len(row.top_logprobs) == 3
        assert row.logprob == row.top_logprobs[0].logprob  # greedy draws the likeliest
    assert_openai("CreateChatCompletionResponse", json.loads(answer.to_json()))


def test_stop_strings_do_not_leak(client: openai.OpenAI) -> None:
    text = chat(client).choices[0].message.content
    stop = text[len(text) // 2 :][:3]
    answer = chat(client, stop=[stop])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert stream_text(client, stop=stop) == text[: text.index(stop)]


def test_all_the_room_is_the_default(client: openai.OpenAI) -> None:
    answer = chat(client, model=ENDLESS, max_tokens=None, messages=HELLO)
    assert answer.usage.total_tokens == 4096
    assert answer.choices[0].finish_reason == "length"


def test_max_completion_tokens(client: openai.OpenAI) -> None:
    assert chat(client, max_tokens=None, max_completion_tokens=4).usage.completion_tokens == 4


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="The stage is", temperature=0)
    assert answer.usage
    assert answer.usage.completion_tokens == 16
    assert_openai("CreateCompletionResponse", json.loads(answer.to_json()))
    chunks = client.completions.create(model=MODEL, prompt="The stage is", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def test_completions_of_several_prompts(client: openai.OpenAI) -> None:
    prompts = ["The stage", "The sea"]
    alone = [client.completions.create(model=MODEL, prompt=p, temperature=0) for p in prompts]
    both = client.completions.create(model=MODEL, prompt=prompts, temperature=0, n=2, logprobs=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    first, second = (answer.choices[0].text for answer in alone)
    assert [choice.text for choice in both.choices] == [first, first, second, second]
    assert both.usage
    assert both.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone if answer.usage)
    assert_openai("CreateCompletionResponse", json.loads(both.to_json()))


def test_completions_of_token_ids(client: openai.OpenAI) -> None:
    one = client.completions.create(model=MODEL, prompt=[10, 20, 30], temperature=0)
    two = client.completions.create(model=MODEL, prompt=[[10, 20, 30], [40]], temperature=0)
    assert two.choices[0].text == one.choices[0].text
    assert one.usage
    assert one.usage.prompt_tokens == 3


def test_streamed_completion_chunks(node: LocalNode) -> None:
    body = {"model": MODEL, "prompt": ["a", "b"], "logprobs": 1, "stream_options": {"include_usage": True}}
    *chunks, end = events(node, "/v1/completions", body)
    assert end == "[DONE]"
    offsets: dict[int, int] = {}
    for chunk in map(json.loads, chunks[:-1]):
        [choice] = chunk["choices"]
        if choice["logprobs"]:
            offset = choice["logprobs"]["text_offset"][0]
            assert offset >= offsets.get(choice["index"], 0)
            offsets[choice["index"]] = offset
    assert json.loads(chunks[-1])["usage"]["completion_tokens"] == 32
    assert set(offsets) == {0, 1}


def test_models(node: LocalNode, client: openai.OpenAI) -> None:
    listed = client.models.list()
    assert {model.id for model in listed.data} >= {MODEL, ENDLESS}
    assert_openai("ListModelsResponse", node.call("GET", "/v1/models").json)
    assert client.models.retrieve(MODEL).id == MODEL  # the client writes the slash as %2F
    for path in ("acme/tiny", "acme%2Ftiny"):
        answer = node.call("GET", f"/v1/models/{path}")
        assert answer.json["status"] == "ready"
        assert_openai("Model", answer.json)


def test_an_instance_can_be_named_as_model(node: LocalNode, client: openai.OpenAI) -> None:
    [instance] = [i for i in node.call("GET", "/instance").json["instances"] if i["model_id"] == MODEL]
    assert chat(client, model=instance["instance_id"]).model == MODEL


def test_the_request_id_finds_the_tasks_in_the_log(node: LocalNode) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2}
    answer = node.call("POST", "/v1/chat/completions", body)
    request_id = answer.headers["X-Request-Id"]
    assert answer.json["id"] == f"chatcmpl-{request_id}"
    created = node.call("GET", "/events?type=TaskCreated&limit=1000").json["events"]
    assert request_id in {record["event"]["request_id"] for record in created}


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "acme/nothing"}, openai.NotFoundError, "model_not_running"),
        ({"messages": []}, openai.BadRequestError, "invalid_type"),
        ({"messages": [{"role": "stranger", "content": "x"}]}, openai.BadRequestError, "invalid_prompt"),
        ({"max_tokens": 600}, openai.BadRequestError, "context_length_exceeded"),
        (
            {"messages": [{"role": "user", "content": "sea " * 2000}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        ({"temperature": 9}, openai.BadRequestError, "invalid_type"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "unsupported_value"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(
    client: openai.OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    with pytest.raises(error) as caught:
        chat(client, stream=stream, **fields)
    assert caught.value.code == code
    assert_openai("ErrorResponse", caught.value.response.json())
    if code == "context_length_exceeded":
        assert "maximum context length" in str(caught.value)
    assert "Traceback" not in caught.value.response.text
    assert ".py" not in caught.value.response.text


def test_bad_requests_harm_nobody(client: openai.OpenAI, node: LocalNode) -> None:
    """While one stream runs, its neighbours fail in every way; it ends as it would alone."""
    fields: dict[str, Any] = {"model": ENDLESS, "max_tokens": 200}
    alone = stream_text(client, **fields)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream_text, client, **fields)
        for messages in ([], [{"role": "stranger"}], [{"role": "user", "content": "a" * 50_000}]):
            with pytest.raises(openai.BadRequestError):
                chat(client, model=ENDLESS, messages=messages)
        assert running.result() == alone
    failed = node.call("GET", "/events?type=RunnerStatusChanged&limit=1000").json["events"]
    assert not [record for record in failed if record["event"]["status"]["status"] == "Failed"]
