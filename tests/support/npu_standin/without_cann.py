"""A package that calls itself torch_npu and, as the real one without CANN, can be found and not imported."""

from __future__ import annotations

from pathlib import Path

_BREAKS = "raise ImportError('libhccl.so: cannot open shared object file: No such file or directory')\n"


def install_torch_npu(packages: Path, release: str) -> Path:
    """Put it into a directory for PYTHONPATH, which is returned. ``release`` is its version."""
    (packages / "torch_npu").mkdir()
    (packages / "torch_npu" / "__init__.py").write_text(_BREAKS)
    info = packages / f"torch_npu-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-npu\nVersion: {release}\n")
    return packages
