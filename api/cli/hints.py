"""Command lines to try next, as this person would have to type them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from actors.settings import Settings, load_settings
from api.cli.client import ANY_ADDRESS


def command_line(settings: Settings, words: str, *, client: bool) -> str:
    """``cuebook`` with ``words`` and what it needs to find this node (``client``) or this node's files."""
    usual = load_settings()
    extra: list[str] = []
    if settings.home != usual.home and not client:
        extra += ["--home", settings.home]
    if settings.host not in (usual.host, *ANY_ADDRESS) and client:
        extra += ["--host", settings.host]
    if settings.api_port != usual.api_port and client:
        extra += ["--port", str(settings.api_port)]
    return " ".join([_program(), words, *map(shlex.quote, extra)])


def _program() -> str:
    """``cuebook`` where the shell finds this one under that name, else the path that it was started by."""
    started = Path(sys.argv[0])
    found = shutil.which("cuebook")
    on_path = found is not None and started.exists() and os.path.samefile(found, started)
    return "cuebook" if on_path or started.suffix == ".py" else shlex.quote(sys.argv[0])
