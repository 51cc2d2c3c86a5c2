"""What a process that runs a node needs around it: log files, file descriptors, and an end on signals."""

from __future__ import annotations

import logging
import logging.handlers
import os
import resource
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from api.cli.console import complain

_LOG_BYTES = 10 * 1024 * 1024
_LOG_FILES = 5
_LOG_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(threadName)s %(name)s: %(message)s"

_WANTED_FILES = 65_536
_MACOS_FILES = 10_240
"""What macOS grants where it says that there is no limit (OPEN_MAX)."""


class StopRequested(BaseException):
    """A signal asks the process to end. Not an `Exception`, so that nothing swallows it on its way out."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@contextmanager
def stop_on_signals() -> Generator[None, None, None]:
    """Raise `StopRequested` in the main thread on the first SIGINT or SIGTERM; end at once on the second."""
    asked: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if asked:
            # Runners end by themselves when their socket to this process closes; the log needs no goodbye.
            os._exit(128 + number)
        asked.append(number)
        raise StopRequested(signal.Signals(number).name)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def log_to_files(directory: Path, level: str) -> Path:
    """Send the log to rotating files, and warnings also to standard error. Returns the newest file's path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "node.log"
    formatter = logging.Formatter(_LOG_FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    files = logging.handlers.RotatingFileHandler(
        path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8"
    )
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel(logging.WARNING)
    for handler in (files, terminal):
        handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[files, terminal], force=True)
    return path


def raise_file_limit() -> int:
    """Let the process open as many files as the system grants it; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (_WANTED_FILES, _MACOS_FILES):
        target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY or soft >= target:
            return soft
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (ValueError, OSError):
            continue
        return target
    complain(f"This process may open only {soft} files; many clients at once need more (`ulimit -n`).")
    return soft
