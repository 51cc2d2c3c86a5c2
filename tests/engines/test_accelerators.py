"""What is said of accelerators, by a stand-in for the modules ``torch.cuda`` and ``torch.npu``.

No accelerator was there: it shows what is asked of such a module, nothing about a driver.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from engines.torch.accelerators import listed

GIB = 1 << 30


class StandInModule:
    """Two devices of 8 GiB; of the second one somebody else has most."""

    def device_count(self) -> int:
        return 2

    def get_device_name(self, number: int) -> str:
        return f"stand-in {number}"

    def get_device_properties(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=8 * GIB)


class StandInWithReadings(StandInModule):
    """One that also says what is free, as a pair of free and total."""

    def __init__(self, read: Callable[[int], int]) -> None:
        self._read = read

    def mem_get_info(self, number: int) -> tuple[int, int]:
        return self._read(number), 8 * GIB


def test_devices_have_names_memory_and_what_is_free_of_it() -> None:
    found = listed("cuda", StandInWithReadings(lambda number: (7 - 6 * number) * GIB))
    assert [(d.device_id, d.kind, d.name, d.memory_bytes, d.memory_free) for d in found] == [
        ("cuda:0", "cuda", "stand-in 0", 8 * GIB, 7 * GIB),
        ("cuda:1", "cuda", "stand-in 1", 8 * GIB, GIB),
    ]


def _fails(number: int) -> int:
    raise RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize("module", [StandInModule(), StandInWithReadings(_fails)])
def test_what_can_not_be_read_is_not_known(module: StandInModule) -> None:
    assert [d.memory_free for d in listed("npu", module)] == [None, None]
