"""Show nodes, links, instances, runners, open tasks, downloads and models, as a node knows them now."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import msgspec

from api.cli.client import Client
from api.cli.console import print_json
from api.cli.setting_flags import CLIENT_SETTINGS, add_setting_flags, settings_of
from api.cli.state_tables import show_state
from api.state_view import StateView


def add_arguments(parser: ArgumentParser) -> None:
    """`--json`, and where the node is."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_setting_flags(parser, CLIENT_SETTINGS)


def run(args: Namespace) -> int:
    """Ask the node for its state."""
    answer = Client(settings_of(args)).get("/state")
    if args.json:
        print_json(answer)
    else:
        show_state(msgspec.convert(answer, StateView))
    return 0
