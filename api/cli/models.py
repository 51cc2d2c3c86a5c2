"""List, add, import or remove models of a running node."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from api.cli.client import Client, segment
from api.cli.console import print_json, print_table, say
from api.cli.setting_flags import CLIENT_SETTINGS, add_setting_flags, settings_of
from projections.phrases import size


def add_arguments(parser: ArgumentParser) -> None:
    """One subcommand for each thing to do; without any, what `list` takes."""
    _add_common(parser)
    subcommands = parser.add_subparsers(
        metavar="WHAT", help="what to do (default: list)", parser_class=_Subparser
    )
    parser.set_defaults(act=_list)
    listing = subcommands.add_parser(
        "list", help="list the known models", description="List the known models."
    )
    listing.set_defaults(act=_list)
    add_text = "make a model of the Hugging Face hub known; its files are fetched when it is first placed"
    adding = subcommands.add_parser("add", help=add_text, description=f"{add_text.capitalize()}.")
    adding.add_argument("model", metavar="MODEL", help="repository, such as org/name")
    adding.set_defaults(act=_add)
    import_text = "take a model into the store from a directory or a GGUF file of this machine"
    importing = subcommands.add_parser("import", help=import_text, description=f"{import_text.capitalize()}.")
    importing.add_argument(
        "path", metavar="PATH", help="directory with config.json and safetensors, or a .gguf file"
    )
    importing.add_argument(
        "--id", metavar="MODEL", default="", help="id that it gets (default: the file's name)"
    )
    importing.set_defaults(act=_import)
    remove_text = "delete a model's files from the writable models directories"
    removing = subcommands.add_parser("remove", help=remove_text, description=f"{remove_text.capitalize()}.")
    removing.add_argument("model", metavar="MODEL", help="id of the model")
    removing.set_defaults(act=_remove)
    for each in (listing, adding, importing, removing):
        _add_common(each)


class _Subparser(ArgumentParser):
    """Says nothing of a flag that it isn't given: it may stand before the subcommand."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, argument_default=SUPPRESS)


def _add_common(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_setting_flags(parser, CLIENT_SETTINGS)


def run(args: Namespace) -> int:
    """Ask the node."""
    answer = args.act(Client(settings_of(args)), args)
    if args.json:
        print_json(answer)
    return 0


def _list(client: Client, args: Namespace) -> Any:
    answer = client.get("/models")
    if not args.json:
        rows = [
            (
                model["model_id"],
                model["status"],
                f"{model['card']['n_params'] / 1e6:.0f}M",
                size(model["card"]["weight_bytes"]),
                model["card"]["max_context"],
                ", ".join(model["paths"].values())
                or f"{model['source']['kind']} {model['source']['location']}",
            )
            for model in answer["models"]
        ]
        print_table(
            ("model", "is", "parameters", "files", "context", "from"), rows, empty="No model is known."
        )
    return answer


def _add(client: Client, args: Namespace) -> Any:
    answer = client.post("/models", {"model_id": args.model})
    if not args.json:
        say(f"{answer['model_id']} is known. Run it with `cuebook place {answer['model_id']} --wait`.")
    return answer


def _import(client: Client, args: Namespace) -> Any:
    path = Path(args.path).expanduser().absolute()
    answer = client.post("/models", {"path": str(path), "model_id": args.id})
    if not args.json:
        say(f"{answer['model_id']} is stored. Run it with `cuebook place {answer['model_id']} --wait`.")
    return answer


def _remove(client: Client, args: Namespace) -> Any:
    answer = client.delete(f"/models/{segment(args.model)}")
    if not args.json:
        say(f"The files of {answer['model_id']} are deleted.")
    return answer
