"""The entry point of `cuebook`: finds the command, runs it, and turns errors into sentences."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from typing import Protocol, cast

from actors.settings import SettingsError
from api.cli.console import complain
from api.cli.errors import CliError
from events.errors import LogError

COMMANDS = {
    "demo": "start a node, run a small real model on it, and stream an answer",
    "serve": "run a node with its HTTP API until it is told to stop",
    "place": "run a model: ask the cluster to place an instance of it",
    "chat": "talk to a running model",
    "status": "show nodes, instances, runners, open tasks and the last trouble",
    "models": "list, add, import or remove models",
    "replay": "ask the log what happened and why, and decide it again",
    "browse": "open the tables and the log in a web browser, with ready-made queries",
    "doctor": "check this machine and this installation, and say what to do",
}
"""Every command with its summary. The module `api.cli.<command>` has the rest and is imported when used."""


class Command(Protocol):
    """A command's module. Its docstring is the description that `--help` prints."""

    __doc__: str | None

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the command's arguments."""
        ...

    def run(self, args: Namespace) -> int:
        """Do it; returns the exit code. Raises `CliError`."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Returns the exit code: 0 done, 1 not done, 2 not understood, 130 interrupted."""
    if isinstance(out := cast(object, sys.stdout), TextIOWrapper):
        out.reconfigure(errors="replace")  # a model writes what this terminal may not have
    words = list(sys.argv[1:] if argv is None else argv)
    args = _overview().parse_args(words[:1] or ["--help"])
    try:
        code = command(args.command).run(parser_of(args.command).parse_args(words[1:]))
        sys.stdout.flush()
        return code
    except (CliError, SettingsError, LogError) as error:
        complain(f"cuebook {args.command}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output, such as `head`, has enough; Python must not complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def command(name: str) -> Command:
    """The module of a command."""
    return cast(Command, import_module(f"api.cli.{name}"))


def parser_of(name: str) -> ArgumentParser:
    """The parser of a command's own arguments."""
    module = command(name)
    parser = ArgumentParser(
        prog=f"cuebook {name}", description=module.__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    module.add_arguments(parser)
    return parser


def _overview() -> ArgumentParser:
    lines = "\n".join(f"  {name:<8} {summary}" for name, summary in COMMANDS.items())
    parser = ArgumentParser(
        prog="cuebook",
        usage="cuebook COMMAND [ARGUMENTS]",
        description="An LLM inference cluster whose every decision is on the record.",
        epilog=f"commands:\n{lines}\n\n`cuebook COMMAND --help` explains one of them.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cuebook {version('cuebook')}")
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", help="one of these")
    return parser


if __name__ == "__main__":
    sys.exit(main())
