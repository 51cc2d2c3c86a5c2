"""Answers of a model as they come, over the OpenAI chat endpoint of a node."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any

from api.cli.client import Client
from api.cli.errors import CliError

Message = dict[str, str]
"""A message of a chat: ``role`` and ``content``."""


def stream_answer(
    client: Client, model: str, messages: list[Message], options: dict[str, Any]
) -> Generator[str, None, None]:
    """The pieces of the answer's text. Closing the generator cancels the rest of it.

    Raises `CliError` with the node's sentence where the answer breaks.
    """
    body = {"model": model, "messages": messages, "stream": True, **options}
    with closing(client.events("POST", "/v1/chat/completions", body)) as events:
        for event in events:
            if event.data == "[DONE]":
                return
            if "error" in event.data:
                raise CliError(event.data["error"]["message"])
            for choice in event.data["choices"]:
                yield choice["delta"].get("content", "")
    raise CliError(
        "The answer ended before it was complete; `cuebook replay timeline --failures` may say why."
    )


def print_answer(pieces: Generator[str, None, None]) -> str:
    """Write an answer to standard output as it comes; returns the whole text.

    Ctrl-C cancels the answer and raises KeyboardInterrupt.
    """
    text = ""
    try:
        with closing(pieces):
            for piece in pieces:
                text += piece
                sys.stdout.write(piece)
                sys.stdout.flush()
    finally:
        if text:
            sys.stdout.write("\n")
            sys.stdout.flush()
    return text
