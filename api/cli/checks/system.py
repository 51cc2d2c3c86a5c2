"""The machine itself: Python, processors, memory, open files."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator

import psutil

from api.cli.checks.finding import Finding

_FEW_FILES = 1024
_LITTLE_MEMORY = 2 * 1024**3


def check() -> Iterator[Finding]:
    """Findings on what every node needs."""
    yield Finding("ok", "system", f"Python {platform.python_version()} on {platform.platform()}")
    yield _memory()
    yield _files()


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count()
    free, total = memory.available / 1024**3, memory.total / 1024**3
    text = f"{cores} cores, {free:.1f} of {total:.1f} GiB memory available"
    if memory.available < _LITTLE_MEMORY:
        return Finding("warn", "system", text, "Close other programs: even a small model takes 2 GiB.")
    return Finding("ok", "system", text)


def _files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FEW_FILES:
        return Finding("warn", "system", f"at most {hard} open files", "Raise the hard limit (`ulimit -Hn`).")
    return Finding("ok", "system", f"open files: {'no limit' if hard == resource.RLIM_INFINITY else hard}")
