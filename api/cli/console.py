"""What commands print with: plain text that also reads well in a file, tables where they help."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import IO

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

_FILE_WIDTH = 200
"""Columns of a table that goes to a file or a pipe: it is not cut to the terminal of whoever started it."""


def console(stream: IO[str] | None = None) -> Console:
    """A console on a stream, standard output unless told otherwise. Square brackets in texts are kept."""
    target = stream or sys.stdout
    width = None if target.isatty() else _FILE_WIDTH
    return Console(file=target, width=width, markup=False, highlight=False, emoji=False)


def say(text: str = "", *, style: str = "") -> None:
    """Print a text to standard output; long lines are left to the terminal."""
    if style:
        console().print(text, style=style, soft_wrap=True)
    else:
        print(text, flush=True)


def complain(text: str) -> None:
    """Print an error to standard error."""
    console(sys.stderr).print(text, style="red", soft_wrap=True)


def print_json(value: object) -> None:
    """Print a value as indented JSON, for programs."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    sys.stdout.buffer.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows under their column names; ``empty`` is said where there are none."""
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    if table.row_count:
        console().print(table)
    else:
        say(empty)
