"""The lock that makes a process the one writer of a log.

The operating system frees it when the process ends, however it ends. POSIX only, as the runners are.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from events.errors import LogLocked


class WriterLock:
    """An exclusive lock on ``<log>.lock``, which names its holder's pid. Raises `LogLocked` or `OSError`."""

    def __init__(self, log: Path) -> None:
        self._file = os.open(log.with_name(log.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise LogLocked(
                f"{log} is being written by the process with pid {holder}: stop it, or use another home."
            ) from None
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would race with the next holder."""
        os.close(self._file)
