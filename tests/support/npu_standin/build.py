"""Builds the stand-in for torch-npu: a directory for PYTHONPATH, and one of empty "CANN" libraries.

Needs a C++ compiler; the result is kept for as long as its sources and torch stay the same.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from engines.torch import npu

_SOURCES = Path(__file__).parent


@dataclass(frozen=True)
class Standin:
    """Where it was built. ``packages`` holds the module torch_npu, ``libraries`` what it finds as CANN."""

    packages: Path
    libraries: Path

    def environment(self, *, devices: int = 1) -> dict[str, str]:
        """Variables for a process that is to find NPUs. LD_LIBRARY_PATH works from its start only."""
        return npu.environment() | {
            "PYTHONPATH": f"{self.packages}:{_SOURCES.parents[2]}:{_SOURCES.parents[1]}",
            "LD_LIBRARY_PATH": str(self.libraries),
            "NPU_STANDIN_DEVICES": str(devices),
        }


def build(root: Path) -> Standin:
    """The stand-in below ``root``, built where it is not yet."""
    release = version("torch").partition("+")[0]
    home = root / _digest(release)
    made = Standin(home / "packages", home / "libraries")
    if not home.exists():
        scratch = Path(f"{home}.part")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(_SOURCES / "torch_npu", scratch / "packages" / "torch_npu")
        _register(scratch / "packages", release)
        _compile(scratch / "packages" / "torch_npu" / "standin.so")
        _cann(scratch / "libraries")
        scratch.rename(home)
    return made


def _digest(release: str) -> str:
    sources = sorted(path for path in _SOURCES.rglob("*") if path.suffix in (".py", ".cpp"))
    return hashlib.sha256(release.encode() + b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def _register(packages: Path, release: str) -> None:
    """Have `importlib.metadata` find the version that goes with this torch."""
    info = packages / f"torch_npu-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-npu\nVersion: {release}\n")


def _compile(target: Path) -> None:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    includes = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include"]
    flags = ["-std=c++20", "-O0", "-w", "-shared", "-fPIC", *(f"-I{path}" for path in includes)]
    libraries = [f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    _run(["g++", *flags, str(_SOURCES / "standin.cpp"), "-o", str(target), *libraries])


def _cann(libraries: Path) -> None:
    """Libraries of CANN's names with nothing in them."""
    libraries.mkdir()
    for name in npu.LIBRARIES:
        _run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(libraries / name)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
