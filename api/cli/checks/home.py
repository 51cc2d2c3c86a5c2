"""The home directory: a place where a node can keep its data."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from actors.settings import Settings
from api.cli.checks.finding import Finding

_LOW_BYTES = 2 * 1024**3
_NO_ROOM_BYTES = 256 * 1024**2


def check(settings: Settings) -> Iterator[Finding]:
    """Findings on the home directory and the room on its disk."""
    home = settings.home_path
    try:
        existing = next(path for path in (home, *home.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"cue")
    except OSError as error:
        advice = "Make it writable, or name another one with --home or CUEBOOK_HOME."
        yield Finding("fail", "home", f"{home} can't be written: {error.strerror or error}", advice)
        return
    yield Finding("ok", "home", f"{home} {'is writable' if existing == home else 'will be made when needed'}")
    yield room(existing, "home")


def room(path: Path, subject: str) -> Finding:
    """A finding on the free space of the disk that ``path`` is on."""
    free = shutil.disk_usage(path).free
    text = f"{free / 1024**3:.1f} GiB free on the disk of {path}"
    if free < _NO_ROOM_BYTES:
        return Finding("fail", subject, text, "Make room: the log stops when the disk is full.")
    if free < _LOW_BYTES:
        return Finding("warn", subject, text, "Make room, or keep models on another disk with --models-dir.")
    return Finding("ok", subject, text)
