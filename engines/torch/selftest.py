"""`python -m engines.torch.selftest`: compute something with torch and print an `EngineReport` as JSON."""

from __future__ import annotations

import sys
from importlib.metadata import version

import numpy as np
import torch
import torch.nn.functional as F

from engines import self_tests, speed
from engines.contract import LoadError
from engines.torch import devices
from events.values import EngineReport


def main(*, measure: bool) -> None:
    """Print the report. A crash before that is for the parent to report."""
    self_tests.show(_test(measure=measure))


def _test(*, measure: bool) -> EngineReport:
    device_ids = _devices()
    try:
        device = devices.torch_device(device_ids[0])
    except LoadError as error:
        return self_tests.failed("torch", error.cause.message)
    if not _computes(device):
        return self_tests.failed("torch", "torch computes wrongly: a small product differs from numpy's.")
    kind = devices.device_kind(device_ids[0])
    dtype = kind.dtype()
    return EngineReport(
        engine="torch",
        version=f"{version('torch')} (transformers {version('transformers')})",
        ok=True,
        detail=f"torch computes on {kind.kind}.",
        device_ids=device_ids,
        dtype=dtype,
        options={"dtype": f"{dtype} is what {_name(device)} multiplies fastest"},
        strategies=["expert"],
        speed=speed.tokens_per_second(_Kit(device, devices.DTYPES[dtype])) if measure else 0.0,
    )


def _devices() -> list[str]:
    """The accelerators where there are some, else the CPU."""
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu:0"]


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "this CPU"


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
