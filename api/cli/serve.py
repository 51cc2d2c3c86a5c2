"""Run a node with its HTTP API until it is told to stop.

Ctrl-C or SIGTERM stops it cleanly: open answers end, runners stop, the log says goodbye. A second Ctrl-C ends
it at once, which loses nothing that was acknowledged.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from importlib.metadata import version
from pathlib import Path

from actors.node import Node
from actors.settings import Settings
from api.cli.client import Client
from api.cli.console import complain, say
from api.cli.hints import command_line
from api.cli.process import run_node, with_free_port
from api.cli.setting_flags import add_setting_flags, settings_of

_LOOK_S = 0.5
"""Seconds until the main thread looks up: a signal that the system gives to another thread waits for that."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_arguments(parser: ArgumentParser) -> None:
    """Every setting."""
    add_setting_flags(parser)


def run(args: Namespace) -> int:
    """Serve until a signal, or until the node ends by itself, which is a failure."""
    settings = with_free_port(settings_of(args))
    return run_node(settings, serve)


def serve(node: Node) -> int:
    """Say where things are and wait for the node's end."""
    say(_screen(node))
    if node.settings.host not in _LOOPBACK:
        complain(f"Everyone who reaches {node.settings.host} can use this node: there is no authentication.")
    return wait(node)


def wait(node: Node) -> int:
    """Wait for the node's end, which only comes without a signal when something is broken."""
    while not node.wait(_LOOK_S):
        pass
    complain(f"The node has ended by itself; {_messages(node.settings)} says why.")
    return 1


def _screen(node: Node) -> str:
    settings = node.settings
    url = Client(settings).url
    lines = {
        "API": (url, f"for OpenAI clients: {url}/v1"),
        "log": (settings.log_path, command_line(settings, "replay timeline", client=False)),
        "tables": (settings.projections_path, command_line(settings, "browse", client=False)),
        "models": (settings.default_models_path, command_line(settings, "models list", client=True)),
        "messages": (_messages(settings), "rotated at 10 MB, five are kept"),
    }
    head = f"Cuebook {version('cuebook')}, {node.node_id}, process {os.getpid()}. Ctrl-C stops it."
    return "\n".join([head, *(f"  {name:<9} {where}  ({hint})" for name, (where, hint) in lines.items())])


def _messages(settings: Settings) -> Path:
    return settings.home_path / "logs" / "node.log"
