"""A stand-in that calls itself torch_npu: what our code asks of the real one, on a CPU-backed device.

It computes as the CPU does, proves nothing about Ascend, and knows neither streams nor private formats.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from . import npu as npu
from .hccl import connect

__version__ = "0.0.0"

_LIBRARY = Path(__file__).with_name("standin.so")

torch.ops.load_library(str(_LIBRARY))
npu.library = ctypes.CDLL(str(_LIBRARY))
torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", npu)
torch.utils.generate_methods_for_privateuse1_backend()
torch.distributed.Backend.register_backend("hccl", connect, extended_api=True, devices=["npu"])


def npu_fusion_attention(*_: object, **__: object) -> None:
    """What transformers imports wherever it finds NPUs; we ask it for torch's own attention."""
    raise NotImplementedError("the stand-in for torch_npu has no fused attention")
