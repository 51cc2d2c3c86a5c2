"""Start a node, run a small real model on it, and stream an answer.

The model is SmolLM2-135M-Instruct: its files are fetched once (90 MB) and kept. The node goes on serving
until Ctrl-C.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec

from actors.node import Node
from actors.settings import Settings
from api.cli.answers import print_answer, stream_answer
from api.cli.client import Client, ServerRefused
from api.cli.console import say
from api.cli.errors import CliError, NotInstalled
from api.cli.hints import command_line
from api.cli.place import place
from api.cli.process import run_node, with_free_port
from api.cli.readiness import wait_ready
from api.cli.serve import wait
from api.cli.setting_flags import add_setting_flags, settings_of

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "Write one sentence about the sea."

_START_S = 180.0
_LOOK_S = 0.2


def add_arguments(parser: ArgumentParser) -> None:
    """`--once`, and every setting."""
    parser.add_argument("--once", action="store_true", help="end after the answer")
    add_setting_flags(parser)


def run(args: Namespace) -> int:
    """Run the demo."""
    if find_spec("mlx") is None or find_spec("mlx_lm") is None:
        raise NotInstalled("The engine of the demo, MLX,", "demo")
    settings = with_free_port(settings_of(args))
    return run_node(settings, lambda node: _show(node, once=args.once))


def _show(node: Node, *, once: bool) -> int:
    client = Client(node.settings)
    say(f"A node is up at {client.url}; its messages go to {node.settings.home_path / 'logs'}.")
    _wait_for_node(client)
    instance_id = _instance(client)
    wait_ready(client, instance_id)
    say(f"\n> {QUESTION}", style="bold")
    print_answer(stream_answer(client, MODEL, [{"role": "user", "content": QUESTION}], {"temperature": 0}))
    if once:
        return 0
    say(_what_next(node.settings, client, instance_id))
    return wait(node)


def _wait_for_node(client: Client) -> None:
    """Wait until the node's engines have passed their self-tests. Raises `CliError`."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            client.get("/readyz")
            return
        except ServerRefused as error:
            if time.monotonic() > deadline:
                raise CliError(
                    f"The node is not ready after {_START_S:g} s; `cuebook doctor` may say why."
                ) from error
        time.sleep(_LOOK_S)


def _instance(client: Client) -> str:
    """The instance of an earlier demo, or a new one."""
    for instance in client.get("/instance")["instances"]:
        if instance["model_id"] == MODEL:
            instance_id: str = instance["instance_id"]
            if instance["status"] == "failed":
                client.post(f"/instance/{instance_id}/retry", None)
            return instance_id
    return place(client, MODEL, {})["instance_id"]


def _what_next(settings: Settings, client: Client, instance_id: str) -> str:
    browse = command_line(settings, "browse", client=False)
    if find_spec("datasette") is None:
        browse += "    (needs Datasette: the extra `browse`)"
    ask = '{"model": "' + MODEL + '", "messages": [{"role": "user", "content": "Hello!"}]}'
    return f"""
The node goes on serving. In another terminal, try

  curl {client.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{ask}'
  {command_line(settings, "chat", client=True)}
  {command_line(settings, "status", client=True)}
  {command_line(settings, f"replay why {instance_id}", client=False)}
  {browse}

Ctrl-C stops it."""
