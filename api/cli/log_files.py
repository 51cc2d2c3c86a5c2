"""The messages of a node's process: rotating files, and warnings on the terminal."""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time
from pathlib import Path

from api.cli.errors import CliError

_BYTES = 10 * 1024 * 1024
_FILES = 5
_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(threadName)s %(name)s: %(message)s"


def log_to_files(directory: Path, level: str) -> None:
    """Send the messages of this process to rotating files. Raises `CliError` where they can't be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        files = logging.handlers.RotatingFileHandler(
            directory / "node.log", maxBytes=_BYTES, backupCount=_FILES, encoding="utf-8"
        )
    except OSError as error:
        raise CliError(
            f"{directory} can't be written ({error.strerror}). Name another home with --home or CUEBOOK_HOME."
        ) from error
    _attach(files)
    logging.root.setLevel(level.upper())


def warn_on_terminal() -> None:
    """Send warnings to standard error too; before the start is over, its own error says it better."""
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel(logging.WARNING)
    _attach(terminal)


def _attach(handler: logging.Handler) -> None:
    formatter = logging.Formatter(_FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.root.addHandler(handler)
