"""Log probabilities as the two OpenAI forms have them."""

from __future__ import annotations

from collections.abc import Sequence

from api.openai.schema import ChatLogprob, ChatLogprobs, TextLogprobs, TopLogprob
from engines.wire import Logprob

_FLOOR = -9999.0
"""What JSON, which has no infinity, says for a token that could not have been drawn; OpenAI's own value."""


def chat_logprobs(rows: Sequence[Logprob]) -> ChatLogprobs:
    """The chat form: tokens with their bytes."""
    return ChatLogprobs(
        content=[
            ChatLogprob(
                token=row.text,
                logprob=max(row.logprob, _FLOOR),
                bytes=list(row.raw),
                top_logprobs=[
                    TopLogprob(token=text, logprob=max(logprob, _FLOOR), bytes=list(raw))
                    for _, text, raw, logprob in row.top
                ],
            )
            for row in rows
        ]
    )


def text_logprobs(rows: Sequence[Logprob], offset: int) -> TextLogprobs:
    """The form of text completions; the first token starts at character ``offset``."""
    offsets: list[int] = []
    for row in rows:
        offsets.append(offset)
        offset += len(row.text)
    return TextLogprobs(
        tokens=[row.text for row in rows],
        token_logprobs=[max(row.logprob, _FLOOR) for row in rows],
        top_logprobs=[{text: max(logprob, _FLOOR) for _, text, _, logprob in row.top} for row in rows],
        text_offset=offsets,
    )
