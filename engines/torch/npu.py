"""Ascend NPUs through torch-npu. Imports neither torch nor torch-npu before they are asked for.

Where torch-npu is installed and Ascend's own software, CANN, is not, `import torch` fails unless
`environment` is set, and so does `import transformers` unless `settle` has been called.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, cast

from engines.refusals import refused
from engines.torch.accelerators import listed
from events.values import Cause, Device

if TYPE_CHECKING:
    import torch

_PACKAGE = "torch_npu"
LIBRARIES = ("libascendcl.so", "libhccl.so", "libge_runner.so", "libgraph.so", "libacl_op_compiler.so")
"""Libraries of CANN that torch-npu can't be loaded without."""
COLLECTIVE_S = 600
"""Seconds after which HCCL gives up a collective, as all groups do; its own 1836 are too long here."""
_CANN = (
    "Install CANN (driver, toolkit and kernels for this NPU), run `source set_env.sh` of its directory, such "
    "as /usr/local/Ascend/ascend-toolkit, and start Cuebook from that shell; where there is no NPU, "
    "uninstall torch-npu."
)


def environment() -> dict[str, str]:
    """Variables for every process that imports torch. What the user has set for HCCL stays."""
    chosen = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # `prepare` loads torch-npu, and says what is wrong
    if installed():
        chosen["HCCL_EXEC_TIMEOUT"] = os.environ.get("HCCL_EXEC_TIMEOUT", str(COLLECTIVE_S))
    return chosen


def installed() -> bool:
    """True where the package torch-npu is there, whatever it can do here."""
    return importlib.util.find_spec(_PACKAGE) is not None


def fault() -> Cause | None:
    """Why torch-npu can't be loaded here, as far as that shows without loading it.

    Loads CANN's libraries: for runners and self-tests, not for a node.
    """
    if not installed():
        return Cause(
            code="torch_npu_missing",
            message="torch-npu is not installed; on a machine with NPUs: `pip install 'cuebook[npu]'`.",
        )
    return _pairing() or _libraries()


def settle(device_id: str) -> None:
    """Make the device ready, to be called before transformers is imported. Raises `LoadError`.

    transformers loads torch-npu wherever it finds it, even for a CPU; there it is not to find it.
    """
    kind, _, number = device_id.partition(":")
    if kind == "npu":
        prepare(int(number or 0))
    else:
        hide()


def hide() -> None:
    """Have this process find no torch-npu, unless it is loaded already."""
    modules = cast("dict[str, object]", sys.modules)
    modules.setdefault(_PACKAGE, None)


def prepare(number: int = 0) -> None:
    """Load torch-npu, and make an NPU the current one, which HCCL computes on. Raises `LoadError`.

    Tensors keep to the plain format ND: what is moved between ranks is slices of them, and a slice of one in
    a private format such as NZ can't be sent. Kernels are taken as they are built: compiling them for
    every new shape would stop the service each time.
    """
    npu = _loaded()
    have: int = npu.device_count()
    if number >= have:
        raise refused(
            "npu_unavailable",
            f"There is no npu:{number}: torch-npu finds {have or 'no'} NPU{'s' if have != 1 else ''} here. "
            "Check `npu-smi info`, ASCEND_RT_VISIBLE_DEVICES, and that this user (and container) may open "
            "/dev/davinci*.",
        )
    npu.config.allow_internal_format = False
    npu.set_compile_mode(jit_compile=False)
    npu.set_device(number)


def synchronize(device: torch.device) -> None:
    """Wait until all that was asked of the device is computed."""
    _loaded().synchronize(device)


def found() -> list[Device]:
    """The NPUs that torch-npu can reach, with names and memory; at least one. Raises `LoadError`."""
    prepare(0)
    return listed("npu", _loaded())


def _loaded() -> Any:
    """``torch.npu``. Raises `LoadError`."""
    if (module := sys.modules.get(_PACKAGE)) is None:
        if cause := fault():
            raise refused(cause.code, cause.message)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # on stdout, its warnings would spoil a report
                module = importlib.import_module(_PACKAGE)
        except Exception as error:  # it raises whatever it misses
            said = " ".join(str(error).split())
            raise refused("npu_unavailable", f"torch-npu can't be loaded: {said}") from error
    return cast("Any", module).npu


def _pairing() -> Cause | None:
    """A release of torch-npu goes with one of torch, by number."""
    have, wanted = (_release(package) for package in ("torch", "torch-npu"))
    if have == wanted:
        return None
    return Cause(
        code="torch_npu_mismatch",
        message=f"torch-npu {wanted} goes with torch {wanted}, but this torch is {have}: "
        f"`pip install torch=={wanted}`.",
    )


def _release(package: str) -> str:
    """The first three numbers of a version: 2.13.0 of 2.13.0.post1, of 2.13.0rc1 and of 2.13.0+cpu."""
    try:
        found = re.match(r"\d+(?:\.\d+){0,2}", version(package))
    except PackageNotFoundError:
        found = None
    return found[0] if found else "of an unknown version"


def _libraries() -> Cause | None:
    errors = {library: said for library in LIBRARIES if (said := _loading_error(library))}
    if not errors:
        return None
    return Cause(
        code="cann_missing",
        message="torch-npu is installed, but CANN, which it needs, is not in reach: "
        f"{', '.join(errors)} can't be loaded ({next(iter(errors.values()))}). {_CANN}",
    )


def _loading_error(library: str) -> str:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""
