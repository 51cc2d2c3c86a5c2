"""What a runner asks of the operating system for itself. Linux only; elsewhere these do nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, even while it is stopped.

    The second belt: the closed socket ends a healthy runner, this one a stopped or wedged runner.
    """
    if sys.platform == "linux":
        parent = os.getppid()
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)


def name_process(name: str) -> None:
    """The name that ``ps`` and ``top`` show, at most 15 bytes."""
    if sys.platform == "linux":
        _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def _prctl(option: int, argument: object) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
