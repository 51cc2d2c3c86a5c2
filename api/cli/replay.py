"""Ask the log what happened and why, and decide it again.

Reads a log while it is being written, or a copy of one (--log). A position is an event's number, a time, or
'head'.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, get_args

from actors.placement import PREFERENCES
from actors.settings import Settings
from api.cli import replay_commands as commands
from api.cli import replay_experts
from api.cli.positions import HOW
from api.cli.setting_flags import add_setting_flags, settings_of
from events.catalogue import EVENT_TYPES
from events.experts import EplbPolicy
from events.reader import LogReader


class _Subcommands(Protocol):
    def add_parser(self, name: str, *, help: str, description: str) -> ArgumentParser:
        """As argparse's own."""
        ...


def add_arguments(parser: ArgumentParser) -> None:
    """One subcommand for each question."""
    subcommands = parser.add_subparsers(metavar="QUESTION", required=True)
    _state(subcommands)
    _diff(subcommands)
    _why(subcommands)
    _timeline(subcommands)
    _verify(subcommands)
    _what_if(subcommands)
    _heat_map(subcommands)
    _rebuild(subcommands)


def run(args: Namespace) -> int:
    """Open the log and answer."""
    settings = settings_of(args)
    with LogReader.open(log_path(args, settings)) as reader:
        return args.answer(commands.Question(args, settings, reader))


def log_path(args: Namespace, settings: Settings) -> Path:
    """The log that the command line names, or else the home's."""
    return Path(args.log).expanduser() if args.log else settings.log_path


def _add(
    subcommands: _Subcommands, name: str, text: str, answer: Callable[[commands.Question], int]
) -> ArgumentParser:
    parser = subcommands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--log", metavar="PATH", help="the log to read (default: log.db in the home)")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_setting_flags(parser, ("home",))
    parser.set_defaults(answer=answer)
    return parser


def _state(subcommands: _Subcommands) -> None:
    parser = _add(
        subcommands, "state", "show the cluster's state at any point of its history", commands.state
    )
    parser.add_argument("--at", metavar="POSITION", default="head", help=f"{HOW} (default: head)")


def _diff(subcommands: _Subcommands) -> None:
    parser = _add(subcommands, "diff", "show what changed between two points", commands.diff)
    parser.add_argument("before", metavar="A", help=HOW)
    parser.add_argument("after", metavar="B", nargs="?", default="head", help="the same (default: head)")


def _why(subcommands: _Subcommands) -> None:
    parser = _add(subcommands, "why", "tell how a thing came to be as it is, step by step", commands.why)
    parser.add_argument(
        "id",
        metavar="ID",
        help="an instance, runner, task, request, node, model or actor; INSTANCE@EPOCH, an epoch of its "
        "experts; the number of a decision; # and the number of an event",
    )


def _timeline(subcommands: _Subcommands) -> None:
    parser = _add(subcommands, "timeline", "tell what happened, a line for each event", commands.timeline)
    parser.add_argument("--after", metavar="POSITION", default="0", help=f"only later events: {HOW}")
    parser.add_argument("--upto", metavar="POSITION", default="head", help="only events up to here")
    parser.add_argument("--about", metavar="ID", help="only what concerns this instance, runner, task, ...")
    parser.add_argument(
        "--type",
        metavar="EVENT",
        action="append",
        choices=list(EVENT_TYPES),
        help="only this type; repeatable",
    )
    parser.add_argument("--failures", action="store_true", help="only what went wrong")


def _verify(subcommands: _Subcommands) -> None:
    text = "decide every decision again and compare, byte for byte; exit code 1 where one differs"
    parser = _add(subcommands, "verify", text, commands.verify)
    parser.add_argument("--after", metavar="DECISION", type=int, default=0, help="only later decisions")


def _what_if(subcommands: _Subcommands) -> None:
    text = "decide the same history with another placement policy and show what would change"
    parser = _add(subcommands, "what-if", text, commands.what_if)
    policies = [*PREFERENCES, *get_args(EplbPolicy)]
    parser.add_argument(
        "--policy", required=True, choices=policies, help="the other policy, of devices or of experts"
    )


def _heat_map(subcommands: _Subcommands) -> None:
    text = "draw the load of each rank and layer before and after an epoch of an instance's experts"
    parser = _add(subcommands, "heat-map", text, replay_experts.heat_map)
    parser.add_argument("instance", metavar="INSTANCE", help="an instance whose experts are balanced")
    parser.add_argument("--epoch", metavar="N", type=int, help="the epoch (default: that of the last window)")
    parser.add_argument("--to", metavar="FILE.svg", help="the file to write (default: INSTANCE-EPOCH.svg)")


def _rebuild(subcommands: _Subcommands) -> None:
    text = "make projections.db anew from the log"
    parser = _add(subcommands, "rebuild", text, commands.rebuild)
    parser.add_argument("--to", metavar="PATH", help="the file to make (default: beside the log)")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="make it elsewhere and tell what differs; exit code 1 where anything does",
    )
