"""Run a model: ask the cluster to place an instance of it.

MODEL is a model that `cuebook models` lists, or a Hugging Face repository. The decision is in the log when
the command ends; with --wait it also waits until the instance answers.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any, get_args

import msgspec

from api.cli.client import Client
from api.cli.console import print_json, print_table, say
from api.cli.readiness import wait_ready
from api.cli.setting_flags import CLIENT_SETTINGS, add_setting_flags, settings_of
from events.experts import EplbSettings, ExpertDispatch, ExpertFormat
from events.values import Dtype, ShardStrategy
from projections.phrases import size


def add_arguments(parser: ArgumentParser) -> None:
    """The model and what is wanted of its placement."""
    parser.add_argument("model", metavar="MODEL", help="id of the model")
    parser.add_argument("--context", type=int, metavar="N", help="tokens that one sequence may hold")
    parser.add_argument("--batch", type=int, metavar="N", help="sequences computed at the same time")
    parser.add_argument("--dtype", choices=get_args(Dtype), help="number format of the computation")
    parser.add_argument("--ranks", type=int, metavar="N", help="devices to spread over (default: the fewest)")
    parser.add_argument("--strategy", choices=get_args(ShardStrategy), help="how to split it over devices")
    parser.add_argument(
        "--expert-format", choices=get_args(ExpertFormat), help="how weights of experts are held"
    )
    parser.add_argument(
        "--expert-dispatch", choices=get_args(ExpertDispatch), help="how tokens reach experts on other ranks"
    )
    parser.add_argument(
        "--eplb",
        metavar="NAME=VALUE,...",
        nargs="?",
        const="",
        type=balancer,
        help="balance the load of experts; with commas between settings, such as "
        "redundant_experts=2,policy=greedy",
    )
    parser.add_argument("--engine", metavar="NAME", help="engine that must run it")
    parser.add_argument("--node", metavar="ID", help="node that must run it")
    parser.add_argument("--device", metavar="ID", help="device that must run it, such as cpu:0")
    parser.add_argument("--preview", action="store_true", help="only say what would be decided, and why")
    parser.add_argument("--wait", action="store_true", help="wait until it is ready")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_setting_flags(parser, CLIENT_SETTINGS)


def run(args: Namespace) -> int:
    """Ask, and wait where that was asked for."""
    client = Client(settings_of(args))
    if args.preview:
        return preview(client, args)
    answer = place(client, args.model, wishes(args))
    instance_id = answer["instance_id"]
    if args.wait:
        wait_ready(client, instance_id)
        answer["instance"] = client.get(f"/instance/{instance_id}")
    if args.json:
        print_json(answer)
    elif args.wait:
        say(f"{instance_id} is ready. Talk to it with `cuebook chat {args.model}`.")
    else:
        say(f"{instance_id} is placed. `cuebook status` shows how far it is.")
    return 0


def place(client: Client, model_id: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Place an instance; returns the API's answer."""
    return client.post("/instance", {"model_id": model_id, "placement_settings": settings})


def balancer(text: str) -> dict[str, Any]:
    """Settings of the load balancer from ``name=value,...``. Raises `ArgumentTypeError` with a sentence."""
    given: dict[str, str] = {}
    for part in text.split(",") if text else []:
        name, equals, value = part.partition("=")
        if not equals or name.strip() not in EplbSettings.__struct_fields__:
            known = ", ".join(EplbSettings.__struct_fields__)
            raise ArgumentTypeError(f"{part!r} is not one of its settings as NAME=VALUE; known are {known}")
        given[name.strip()] = value.strip()
    try:
        settings = msgspec.convert(given, EplbSettings, strict=False)
    except msgspec.ValidationError as error:
        raise ArgumentTypeError(str(error).replace("$.", "")) from error
    return msgspec.to_builtins(settings)


def wishes(args: Namespace) -> dict[str, Any]:
    """The placement settings that were given."""
    given = {
        "shard_strategy": args.strategy,
        "ranks": args.ranks,
        "context": args.context,
        "batch": args.batch,
        "engine": args.engine,
        "dtype": args.dtype,
        "node_id": args.node,
        "device_id": args.device,
        "expert_format": args.expert_format,
        "expert_dispatch": args.expert_dispatch,
        "eplb": args.eplb,
    }
    return {name: value for name, value in given.items() if value is not None}


def preview(client: Client, args: Namespace) -> int:
    """Print what would be decided with these settings and with variants of them."""
    wanted = wishes(args)
    if "eplb" in wanted:
        wanted["eplb"] = json.dumps(wanted["eplb"])
    answer = client.get("/instance/previews", model_id=args.model, **wanted)
    if args.json:
        print_json(answer)
        return 0
    rows = [
        (one["title"], "fits" if one["fits"] else "does not fit", *_numbers(candidate))
        for one in answer["previews"]
        for candidate in one["candidates"]
    ]
    columns = ("settings", "is", "device", "engine", "verdict", "needed", "free", "why")
    print_table(columns, rows, empty="No node is up that could run anything.")
    return 0


def _numbers(candidate: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{candidate['device_id']} of {candidate['node_id']}",
        f"{candidate['engine']} {candidate['dtype']}",
        candidate["verdict"],
        size(candidate["needed_bytes"]),
        size(candidate["free_bytes"]),
        "; ".join(candidate["reasons"]),
    )
