"""What torch says of accelerators, by the functions that ``torch.cuda`` and ``torch.npu`` both have.

Imports no torch: the module is handed in.
"""

from __future__ import annotations

from typing import Any, Literal

from events.values import Device


def listed(kind: Literal["cuda", "npu"], torch_module: Any) -> list[Device]:
    """The devices that a module such as ``torch.cuda`` can reach, with names and memory.

    To be asked before anything is computed: what this process takes is not free.
    """
    return [
        Device(
            device_id=f"{kind}:{number}",
            kind=kind,
            name=str(torch_module.get_device_name(number)),
            memory_bytes=int(torch_module.get_device_properties(number).total_memory),
            memory_free=_free(torch_module, number),
        )
        for number in range(torch_module.device_count())
    ]


def _free(torch_module: Any, number: int) -> int | None:
    """Bytes free by the driver, whoever has the rest; None where a release or a driver does not say."""
    try:
        return int(torch_module.mem_get_info(number)[0])
    except (AttributeError, RuntimeError):
        return None
