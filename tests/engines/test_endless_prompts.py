"""Prompts that no context holds are refused by their beginning, and choices share the work on theirs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engines.contract import Prompt, Refused
from engines.prompts import HubTokenizer, Prompts
from events.values import Sampling

CONTEXT = 64
SAMPLING = Sampling(max_tokens=1, temperature=0.0, top_p=1.0, seed=0)


class Words:
    """A token for each word; notes how much it was given."""

    has_chat_template = True
    eos_token_ids: frozenset[int] = frozenset()
    bos_token = None
    read = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.read += len(text)
        return [1] * len(text.split())

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool = True, **_: object
    ) -> Any:
        text = " ".join(message["content"] for message in messages)
        return self.encode(text, add_special_tokens=False) if tokenize else text


def prepared(words: Words) -> Prompts:
    return Prompts(cast("HubTokenizer", words), vocab_size=10, context=CONTEXT)


ENDLESS = "word " * 1_000_000


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(kind="completion", text=ENDLESS),
        Prompt(kind="chat", messages=[{"role": "user", "content": ENDLESS}]),
        Prompt(kind="chat", messages=[{"role": "user", "content": "word"}] * 1_000_000),
    ],
    ids=["text", "message", "messages"],
)
def test_little_is_read_of_a_prompt_that_is_far_too_long(prompt: Prompt) -> None:
    words = Words()
    with pytest.raises(Refused, match=f"maximum context length is {CONTEXT} tokens.*more than {2 * CONTEXT}"):
        prepared(words).prepare(prompt, SAMPLING)
    assert words.read < 100 * CONTEXT


def test_a_long_text_of_few_tokens_is_taken() -> None:
    text = " " * 50_000 + "word"
    for prompt in (
        Prompt(kind="completion", text=text),
        Prompt(kind="chat", messages=[{"role": "user", "content": text}]),
    ):
        assert prepared(Words()).prepare(prompt, SAMPLING) == [1]


def test_choices_of_one_prompt_are_tokenized_once_and_get_lists_of_their_own() -> None:
    words = Words()
    prompts = prepared(words)
    first, second = (prompts.prepare(Prompt(kind="completion", text="a b"), SAMPLING) for _ in range(2))
    assert (first, words.read) == (second, len("a b"))
    assert first is not second
    assert prompts.prepare(Prompt(kind="completion", text="a b c"), SAMPLING) == [1, 1, 1]


def test_choices_of_one_refused_prompt_are_refused_each() -> None:
    words = Words()
    prompts = prepared(words)
    for _ in range(3):
        with pytest.raises(Refused):
            prompts.prepare(Prompt(kind="completion", text=ENDLESS), SAMPLING)
    assert words.read == 16 * CONTEXT
