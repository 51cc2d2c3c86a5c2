"""The spliced bytes of a stream are those of the Structs that /openapi.json describes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from api.openai.encoding import ChatEncoder, Head, TextEncoder
from api.openai.schema import ChatChunk, TextCompletion, UsageAnswer
from engines.wire import Chunk, Logprob

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
heads = st.builds(
    Head,
    id=texts,
    created=st.integers(0, 2**40),
    model=texts,
    system_fingerprint=texts,
    choices=st.integers(1, 4),
    usage=st.booleans(),
)


def data_of(event: bytes) -> bytes:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert b"\n" not in event[:-2]
    return event[6:-2]


def same_bytes(event: bytes, kind: Any) -> Any:
    """Decoding and encoding again through the Struct gives the very bytes."""
    data = data_of(event)
    assert msgspec.json.encode(msgspec.json.decode(data, type=kind)) == data
    return json.loads(data)


@given(heads, texts)
def test_chat_text(head: Head, text: str) -> None:
    index = head.choices - 1
    chunk = same_bytes(ChatEncoder(head).text(index, Chunk("task", text, [1])), ChatChunk)
    assert chunk["choices"] == [
        {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    ]
    assert (chunk["id"], chunk["model"], chunk["created"]) == (head.id, head.model, head.created)
    assert ("usage" in chunk) == head.usage
    assert chunk.get("usage") is None


@given(heads, texts)
def test_completion_text(head: Head, text: str) -> None:
    index = head.choices - 1
    chunk = same_bytes(TextEncoder(head).text(index, Chunk("task", text, [1])), TextCompletion)
    assert chunk["choices"] == [{"index": index, "text": text, "logprobs": None, "finish_reason": None}]
    assert ("usage" in chunk) == head.usage


@given(heads)
def test_a_model_named_like_the_splice_mark_changes_nothing(head: Head) -> None:
    tricky = msgspec.structs.replace(head, model="\x00hole\x00", id="\x00hole\x00")
    for encoder, path in ((ChatEncoder(tricky), "delta"), (TextEncoder(tricky), "text")):
        chunk = json.loads(data_of(encoder.text(0, Chunk("task", "words", [1]))))
        found = chunk["choices"][0][path]
        assert (found["content"] if path == "delta" else found) == "words"
        assert chunk["model"] == "\x00hole\x00"


def test_the_course_of_a_chat_stream() -> None:
    head = Head(id="a", created=1, model="m", system_fingerprint="f", choices=2, usage=True)
    encoder = ChatEncoder(head)
    opening = [json.loads(data_of(part + b"\n\n")) for part in encoder.opening().split(b"\n\n") if part]
    assert [chunk["choices"][0]["index"] for chunk in opening] == [0, 1]
    assert opening[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    end = same_bytes(encoder.finish(1, "length"), ChatChunk)
    assert end["choices"] == [{"index": 1, "delta": {}, "logprobs": None, "finish_reason": "length"}]
    usage = UsageAnswer(prompt_tokens=3, completion_tokens=4, total_tokens=7)
    last = same_bytes(encoder.usage(usage), ChatChunk)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 7


def test_logprobs_of_impossible_tokens_are_numbers_and_offsets_run_on() -> None:
    head = Head(id="a", created=1, model="m", system_fingerprint="f", choices=1, usage=False)
    row = Logprob(
        5, "ab", b"ab", float("-inf"), [(5, "ab", b"ab", float("-inf")), (6, "é", b"\xc3\xa9", -0.5)]
    )
    chunk = Chunk("task", "abab", [5, 5], [row, row])
    chat = same_bytes(ChatEncoder(head).text(0, chunk), ChatChunk)["choices"][0]["logprobs"]
    assert [token["logprob"] for token in chat["content"]] == [-9999.0, -9999.0]
    assert chat["content"][0]["top_logprobs"][1] == {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]}
    encoder = TextEncoder(head)
    offsets = [
        json.loads(data_of(encoder.text(0, chunk)))["choices"][0]["logprobs"]["text_offset"] for _ in "12"
    ]
    assert offsets == [[0, 2], [4, 6]]
