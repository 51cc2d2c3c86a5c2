"""The BLAS under MLX on a Linux CPU.

The wheel of MLX's CPU backend carries netlib's reference BLAS, 2 times slower in decode and 14 times in
prefill than OpenBLAS. It calls the standard symbols, so an OpenBLAS that is preloaded takes its place.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

_NAMES = (
    "{root}/*/openblas-pthread/libblas.so.3",  # Debian, Ubuntu
    "{root}/*/openblas-openmp/libblas.so.3",
    "{root}/*/openblas-serial/libblas.so.3",
    "{root}/*/libopenblas.so.0",
    "{root}64/libopenblasp.so.0",  # Fedora, RHEL
    "{root}64/libopenblaso.so.0",
    "{root}64/libopenblas.so.0",  # openSUSE
    "{root}/libopenblas.so",  # Arch
    "{root}/libopenblas.so.3",  # Alpine
)
_ROOTS = ("/usr/lib", "/usr/local/lib")

HOW_TO_GET = (
    "MLX computes with the slow reference BLAS of its wheel. Install OpenBLAS and start the node again: "
    "`apt install libopenblas0-pthread` (Debian, Ubuntu), `dnf install openblas-threads` (Fedora), "
    "`pacman -S openblas` (Arch); about 2 times the tokens per second, 14 times in prefill."
)
"""What `doctor` says where no OpenBLAS is found."""

REFERENCE = {"blas": "netlib reference"}
"""What `in_use` says of the one in MLX's wheel: where nothing was preloaded, whatever is to compute."""


def wanted() -> bool:
    """True where MLX computes with a BLAS that can be replaced."""
    return sys.platform == "linux"


def find(roots: Sequence[str] = _ROOTS) -> Path | None:
    """An installed OpenBLAS, the threaded one first; None where there is none."""
    for name in _NAMES:
        for root in roots:
            pattern = name.format(root=root).lstrip("/")
            if found := sorted(Path("/").glob(pattern)):
                return found[0]
    return None


def in_use() -> dict[str, str]:
    """The BLAS that this process computes with, as ``{"blas": "openblas 0.3.21 /path"}``.

    It is known from the process's start, before MLX is imported. Empty where MLX brings another kind.
    """
    if not wanted():
        return {}
    try:
        get_config = ctypes.CDLL(None).openblas_get_config
    except AttributeError:
        return dict(REFERENCE)
    get_config.restype = ctypes.c_char_p
    version = get_config().decode().split()[1]
    return {"blas": f"openblas {version} {_mapped()}".strip()}


def _mapped() -> str:
    """Path of the OpenBLAS in this process; numpy's own has other symbols and does not count."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if "openblas" in path and "scipy" not in path and path.endswith((".so", ".so.0", ".so.3")):
            return "/" + path
    return ""
