"""The stand-in's ``torch.npu``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

library: Any = None
config = SimpleNamespace(allow_internal_format=True)
compile_mode = {"jit_compile": True}


def device_count() -> int:
    return library.standin_device_count()


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def current_device() -> int:
    return library.standin_current_device()


def set_device(device: int) -> None:
    library.standin_set_device(device)


def set_compile_mode(*, jit_compile: bool) -> None:
    compile_mode["jit_compile"] = jit_compile


def synchronize(device: object = None) -> None:
    pass


def get_device_name(device: object = None) -> str:
    return "stand-in for an NPU"


def get_device_properties(device: object = None) -> SimpleNamespace:
    return SimpleNamespace(name=get_device_name(), total_memory=1 << 30)


def mem_get_info(device: object = None) -> tuple[int, int]:
    return 3 << 28, 1 << 30


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def manual_seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
