"""The messages of a node's process: rotating files, and warnings on the terminal."""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time
from collections.abc import Callable
from pathlib import Path

from api.cli.errors import CliError

_BYTES = 10 * 1024 * 1024
_FILES = 5
_KEPT = 1_000
"""Warnings of a start; it has seldom any."""
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


def warn_on_terminal() -> Callable[[], None]:
    """Keep warnings for standard error. Call the result when the start is over: before, its error says more.

    Then those that were kept are written, and later ones at once.
    """
    terminal = logging.StreamHandler(sys.stderr)
    kept = logging.handlers.MemoryHandler(_KEPT, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
    kept.setLevel(logging.WARNING)
    terminal.setLevel(logging.WARNING)
    _attach(kept)

    def release() -> None:
        _attach(terminal)
        logging.root.removeHandler(kept)
        kept.setTarget(terminal)
        kept.flush()

    return release


def _attach(handler: logging.Handler) -> None:
    formatter = logging.Formatter(_FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.root.addHandler(handler)
