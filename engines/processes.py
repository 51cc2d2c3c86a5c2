"""Runner processes from outside: starting one, listening to its stderr, and saying how it ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from engines.refusals import OUT_OF_MEMORY
from engines.wire import Channel, FromRunner
from events.values import Cause, Diagnostics

STDERR_LINES = 50
"""Lines of a runner's stderr that are kept for its diagnosis."""
STDERR_LINE = 1000
"""Bytes that are kept of each: a bar of progress is one line of any length."""


def spawn_runner(environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start a runner with the engine's ``environment`` on top of this process's.

    It is its own session, so that Ctrl-C reaches the supervisor alone. On Linux it dies with the *thread*
    that calls this. Its stderr is a pipe: give it to a `StderrTail`. Raises `OSError`.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "engines.runner", "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=python_environment() | dict(environment),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, Channel(ours, FromRunner)


def python_environment() -> dict[str, str]:
    """The environment of this process, in which a Python finds our packages even where none is installed."""
    root = str(Path(__file__).resolve().parents[1])
    before = os.environ.get("PYTHONPATH", "")
    if root == sysconfig.get_path("purelib") or root in before.split(os.pathsep):
        return dict(os.environ)
    return os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{before}" if before else root}


class StderrTail:
    """Reads a runner's stderr on a thread, so that the pipe never fills, and keeps its last lines."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=STDERR_LINES)
        self._thread = threading.Thread(target=self._read, name=f"stderr {name}", daemon=True)
        self._thread.start()

    def lines(self, timeout: float = 1.0) -> list[str]:
        """The last lines, after waiting for the pipe's end, which comes with the process's."""
        self._thread.join(timeout)
        return list(self._lines)

    def _read(self) -> None:
        whole = True
        with self._stream:
            while piece := self._stream.readline(STDERR_LINE):
                if whole:
                    self._lines.append(piece.decode(errors="replace").rstrip())
                whole = piece.endswith(b"\n")


def diagnose(exit_code: int | None, stderr_tail: Sequence[str]) -> tuple[Cause, Diagnostics]:
    """Say how a runner ended. ``exit_code`` is `Popen.returncode`: negative for a signal."""
    found = _signal_name(exit_code)
    diagnostics = Diagnostics(
        exit_code=exit_code if exit_code is None or exit_code >= 0 else None,
        signal=found,
        stderr_tail=list(stderr_tail),
    )
    return _cause(exit_code, found, stderr_tail), diagnostics


_KNOWN = (
    (
        re.compile(r"kIOGPUCommandBufferCallbackErrorTimeout|GPU Timeout", re.IGNORECASE),
        Cause(
            code="gpu_timeout",
            message="Metal stopped a computation that took too long; use a smaller prefill chunk.",
        ),
    ),
    (
        OUT_OF_MEMORY,
        Cause(
            code="out_of_memory",
            message="The runner ran out of memory: use a shorter context, a smaller batch or model.",
        ),
    ),
    (
        re.compile(r"\[ring\]|\bring\b.*socket|socket.*\bring\b", re.IGNORECASE),
        Cause(
            code="ring_broken",
            message="The ring of ranks broke: another rank ended, or its address can't be reached.",
        ),
    ),
)

_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Failed)\b")
_KILLED = (
    "The runner was killed by SIGKILL: by someone's `kill -9`, or by the system because memory ran out "
    "(see `dmesg`)."
)


def _cause(exit_code: int | None, signal_name: str, tail: Sequence[str]) -> Cause:
    text = "\n".join(tail)
    for pattern, cause in _KNOWN:
        if pattern.search(text):
            return cause
    if signal_name:
        message = _KILLED if signal_name == "SIGKILL" else f"The runner was ended by {signal_name}."
        return Cause(code="runner_killed", message=message)
    if raised := [line for line in tail if _EXCEPTION.match(line)]:
        return Cause(code="runner_crashed", message=f"The runner ended with {raised[-1]}")
    return Cause(
        code="runner_exited", message=f"The runner ended with exit code {exit_code}, saying nothing."
    )


def _signal_name(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return ""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def kill_orphan(pid: int, started_at: float) -> None:
    """End a runner process that outlived its supervisor, if ``pid`` is still that process."""
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - started_at) < 0.1:
            process.kill()
    except psutil.Error:
        return  # it has ended, as it should have
