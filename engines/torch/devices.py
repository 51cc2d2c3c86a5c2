"""The kinds of device that torch computes on here: one table, which all else looks things up in.

All of torch-npu is in `engines.torch.npu`, which loads it when an NPU is asked for and not before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from engines.refusals import refused
from engines.torch import npu
from events.values import Dtype

DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A kind of device. ``prepare`` brings in what it needs and raises `LoadError` where that is missing."""

    kind: Literal["cpu", "cuda", "npu"]
    torch_type: str
    """What torch calls it: ``cuda:1`` is our ``cuda:1``; a CPU has no numbers in torch."""
    backend: Literal["gloo", "nccl", "hccl"]
    """What carries the collectives of its tensors."""
    prepare: Callable[[int], None]
    """Called with the device's number, whose device becomes the current one."""
    synchronize: Callable[[torch.device], None]
    """Wait until all that was asked of the device is computed."""
    dtype: Callable[[], Dtype]
    """The dtype that it computes best in."""


def _cuda_prepare(number: int) -> None:
    have = torch.cuda.device_count()
    if number >= have:
        raise refused(
            "device_unavailable",
            f"There is no cuda:{number}: torch finds {have or 'no'} CUDA device{'s' if have != 1 else ''} "
            "here. Check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that torch is a build with CUDA (it is "
            f"{torch.__version__}).",
        )
    torch.cuda.set_device(number)


def _cpu_dtype() -> Dtype:
    """bfloat16 where the CPU multiplies it; elsewhere it is emulated, slowly."""
    return "bfloat16" if bfloat16_units() else "float32"


def bfloat16_units() -> list[str]:
    """What the CPU multiplies bfloat16 with: AMX, AVX512-BF16, Arm's BF16.

    None where torch is too old to say what the CPU can do.
    """
    ask: Callable[[], dict[str, object]] = getattr(torch.cpu, "get_capabilities", dict[str, object])
    capabilities: dict[str, object] = ask()
    return [name for name in _BFLOAT16 if capabilities.get(name)]


_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
_KINDS = {
    kind.kind: kind
    for kind in (
        DeviceKind("cpu", "cpu", "gloo", lambda _: None, lambda _: None, _cpu_dtype),
        DeviceKind("cuda", "cuda", "nccl", _cuda_prepare, torch.cuda.synchronize, lambda: "bfloat16"),
        DeviceKind("npu", "npu", "hccl", npu.prepare, npu.synchronize, lambda: "bfloat16"),
    )
}


def device_kind(device_id: str) -> DeviceKind:
    """The kind of a device such as ``cuda:3``. Raises `LoadError` for one that torch has no part in."""
    kind = _KINDS.get(device_id.partition(":")[0])  # type: ignore[call-overload]
    if kind is None:
        raise refused(
            "device_unsupported",
            f"The torch engine computes on {', '.join(_KINDS)}, not on {device_id}; use another engine.",
        )
    return kind


def torch_device(device_id: str) -> torch.device:
    """Torch's name for a device, ready to be used. Raises `LoadError`."""
    kind = device_kind(device_id)
    number = int(device_id.partition(":")[2] or 0)
    kind.prepare(number)
    return torch.device("cpu") if kind.kind == "cpu" else torch.device(kind.torch_type, number)
