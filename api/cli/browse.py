"""Open the tables and the log in a web browser, with ready-made queries.

Runs Datasette, which reads both files while the node writes them and changes neither. Ends with Ctrl-C.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from api.cli.browse_metadata import metadata
from api.cli.checks.port import bind_error, owner
from api.cli.console import say
from api.cli.errors import CliError, NotInstalled
from api.cli.setting_flags import add_setting_flags, settings_of

_QUERY_MS = 10_000
"""Milliseconds that a query may take; a long log takes longer than Datasette's one second."""


def add_arguments(parser: ArgumentParser) -> None:
    """Where to find the files, and where to listen."""
    parser.add_argument("--log", metavar="PATH", help="the log to open (default: log.db in the home)")
    parser.add_argument(
        "--tables", metavar="PATH", help="the tables to open (default: projections.db in the home)"
    )
    parser.add_argument(
        "--listen", metavar="PORT", type=_port, default=8001, help="port on 127.0.0.1 (default: 8001)"
    )
    parser.add_argument("--open", action="store_true", help="open the web browser too")
    add_setting_flags(parser, ("home",))


def _port(text: str) -> int:
    """A port of this machine. Raises `ArgumentTypeError`."""
    if not text.isdecimal() or not 0 < int(text) < 65_536:
        raise ArgumentTypeError(f"{text!r} is no port: 1 to 65535")
    return int(text)


def run(args: Namespace) -> int:
    """Run Datasette until it is interrupted."""
    settings = settings_of(args)
    log = Path(args.log).expanduser() if args.log else settings.log_path
    tables = Path(args.tables).expanduser() if args.tables else settings.projections_path
    missing = [str(path) for path in (log, tables) if not path.is_file()]
    if missing:
        raise CliError(
            f"There is no {' and no '.join(missing)}. A node makes them at its first start; "
            "`cuebook replay rebuild` makes the tables from a log."
        )
    if find_spec("datasette") is None:
        raise NotInstalled("Datasette", "browse")
    if (error := bind_error("127.0.0.1", args.listen)) is not None:
        raise CliError(
            f"Port {args.listen} can't be used: {error}; {owner(args.listen)}. Choose one with --listen."
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, or Datasette would outlive us
    with tempfile.TemporaryDirectory(prefix="cuebook-") as directory:
        described = Path(directory) / "metadata.json"
        described.write_bytes(msgspec.json.encode(metadata(log.stem, tables.stem)))
        say(f"Browse http://127.0.0.1:{args.listen}/ and end with Ctrl-C.")
        command = [
            sys.executable,
            "-m",
            "datasette",
            "serve",
            str(tables),
            str(log),
            "--metadata",
            str(described),
        ]
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            str(args.listen),
            "--setting",
            "sql_time_limit_ms",
            str(_QUERY_MS),
        ]
        return subprocess.call([*command, *options, *(["--open"] if args.open else [])])
