"""Which RDMA devices MLX can use here: those of Thunderbolt 5 on a Mac, of InfiniBand or RoCE elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import mlx.core as mx

_LINUX = Path("/sys/class/infiniband")
_LISTING_S = 10.0


def devices() -> list[str]:
    """Names of the RDMA devices; empty where there are none or this MLX is built without JACCL."""
    if not mx.distributed.is_available("jaccl"):
        return []
    if _LINUX.is_dir():
        return sorted(entry.name for entry in _LINUX.iterdir())
    return _listed() if shutil.which("ibv_devices") else []


def _listed() -> list[str]:
    """What macOS's own tool lists: a table whose first column is the name, such as rdma_en2.

    Nothing where the tool hangs or can't be started: MLX computes without RDMA, too.
    """
    try:
        done = subprocess.run(
            ["ibv_devices"], capture_output=True, text=True, timeout=_LISTING_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted(word for word in done.stdout.split() if word.startswith("rdma_"))
