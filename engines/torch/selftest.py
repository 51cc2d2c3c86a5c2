"""`python -m engines.torch.selftest`: compute something with torch and print an `EngineReport` as JSON."""

from __future__ import annotations

import sys
from importlib.metadata import version

import numpy as np
import torch
import torch.nn.functional as F

from engines import self_tests, speed
from engines.contract import LoadError, Tested
from engines.torch import capabilities, devices, npu
from engines.torch.accelerators import listed
from events.values import Device, EngineReport


def main(*, measure: bool) -> None:
    """Print what was found. A crash before that is for the parent to report."""
    self_tests.show(_test(measure=measure))


def _test(*, measure: bool) -> Tested:
    accelerators, note = _accelerators()
    device_ids = [found.device_id for found in accelerators] or ["cpu:0"]
    device = devices.torch_device(device_ids[0])
    if wrong := _fault(device):
        return self_tests.failed("torch", wrong)
    kind = devices.device_kind(device_ids[0])
    dtype = kind.dtype()
    name = accelerators[0].name if accelerators else _cpu()
    options = {"dtype": f"{dtype} is what {name} multiplies fastest"}
    report = EngineReport(
        engine="torch",
        version=f"{version('torch')} (transformers {version('transformers')})",
        ok=True,
        detail=f"torch computes on {kind.kind}.",
        device_ids=device_ids,
        dtype=dtype,
        options=options | ({"npu": note} if note else {}),
        strategies=["expert"],
        speed=speed.tokens_per_second(_Kit(device, devices.DTYPES[dtype])) if measure else 0.0,
    )
    return Tested(report=report, devices=accelerators)


def _cpu() -> str:
    units = devices.bfloat16_units()
    return f"this CPU, with {', '.join(units)}," if units else "this CPU, which has no unit for bfloat16,"


def _accelerators() -> tuple[list[Device], str]:
    """Those that torch can use, all of one kind, and why it can use no NPU where torch-npu is installed."""
    if found := listed("cuda", torch.cuda):
        return found, ""
    if not npu.installed():
        return [], ""
    try:
        return npu.found(), ""
    except LoadError as error:
        return [], error.cause.message


def _fault(device: torch.device) -> str:
    if not _computes(device):
        return "torch computes wrongly: a small product differs from numpy's."
    return "" if device.type == "cpu" else capabilities.fault(device)


def _computes(device: torch.device) -> bool:
    """True where the products of a matrix and of a vector are numpy's."""
    draw = np.random.default_rng(0)
    a, b = (draw.normal(0, 0.1, shape).astype(np.float32) for shape in ((16, 64), (64, 48)))
    right = torch.tensor(b, device=device)
    return all(
        np.allclose((torch.tensor(x, device=device) @ right).cpu().numpy(), x @ b, atol=1e-2)
        for x in (a, a[:1])
    )


def _heads(x: torch.Tensor) -> torch.Tensor:
    """(n, heads * d) to (1, heads, n, d)."""
    return x.view(len(x), -1, speed.HEAD_DIM).transpose(0, 1)[None]


class _Kit:
    """Implements `engines.speed.Kit`."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._wait = devices.device_kind(str(device)).synchronize

    def full(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, 0.01, device=self._device, dtype=self._dtype)

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:])

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (_heads(x) for x in (q, k, v))
        out = F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)

    def wait(self, x: torch.Tensor) -> None:
        self._wait(x.device)


if __name__ == "__main__":
    main(measure=self_tests.MEASURE in sys.argv)
