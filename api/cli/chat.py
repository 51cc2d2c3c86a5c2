"""Talk to a running model.

Ctrl-C cancels the answer that is being written, not the program; Ctrl-D ends it. /new starts a new
conversation. With -m, prints one answer and ends.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Any

from api.cli.answers import Message, print_answer, stream_answer
from api.cli.client import Client
from api.cli.console import complain, say
from api.cli.errors import CliError
from api.cli.setting_flags import CLIENT_SETTINGS, add_setting_flags, settings_of


def add_arguments(parser: ArgumentParser) -> None:
    """The model, a message, and how to draw tokens."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="id of the model (default: the one that is ready)"
    )
    parser.add_argument("-m", "--message", metavar="TEXT", help="ask this, print the answer, and end")
    parser.add_argument("--system", metavar="TEXT", help="system message that goes before the conversation")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 for the likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="share of probability to draw from")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer, in tokens")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed draws the same answer")
    add_setting_flags(parser, CLIENT_SETTINGS)


def run(args: Namespace) -> int:
    """One answer, or a conversation."""
    client = Client(settings_of(args))
    model = args.model or ready_model(client)
    messages: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    if args.message is not None:
        print_answer(stream_answer(client, model, [*messages, _user(args.message)], _options(args)))
        return 0
    _converse(client, model, messages, _options(args))
    return 0


def ready_model(client: Client) -> str:
    """A model that answers now. Raises `CliError` where there is none."""
    models = client.get("/v1/models")["data"]
    ready = [model["id"] for model in models if model["status"] == "ready"]
    if not ready:
        known = models[0]["id"] if models else "MODEL"
        raise CliError(f"No model is ready. Run one with `cuebook place {known} --wait`.")
    return ready[0]


def _converse(client: Client, model: str, messages: list[Message], options: dict[str, Any]) -> None:
    beginning = list(messages)
    _line_editing()
    say(f"{model}. Ctrl-C cancels an answer, /new starts again, Ctrl-D ends.", style="dim")
    while (text := _read()) is not None:
        if text == "/new":
            messages = list(beginning)
        elif text:
            messages.append(_user(text))
            messages += _answer(client, model, messages, options)


def _read() -> str | None:
    """The next line of the person; None at the end. Ctrl-C gives up the line, not the conversation."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        say("\n(Ctrl-D ends)", style="dim")
        return ""


def _answer(client: Client, model: str, messages: list[Message], options: dict[str, Any]) -> list[Message]:
    """Print the answer; returns it as a message, or nothing where it was cancelled or broke."""
    try:
        text = print_answer(stream_answer(client, model, messages, options))
    except KeyboardInterrupt:
        say("\n(cancelled)", style="dim")
    except CliError as error:
        complain(str(error))
    else:
        return [{"role": "assistant", "content": text}]
    messages.pop()
    return []


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _options(args: Namespace) -> dict[str, Any]:
    given = {
        "temperature": args.temperature,
        "top_p": args.top_p,
        "max_completion_tokens": args.max_tokens,
        "seed": args.seed,
    }
    return {name: value for name, value in given.items() if value is not None}


def _line_editing() -> None:
    """Give `input` editing and history, where this Python has them."""
    try:
        import_module("readline")
    except ImportError:
        return
