"""`python -m engines.mlx.selftest`: compute something with MLX and print an `EngineReport` as JSON."""

from __future__ import annotations

import sys

import msgspec
import numpy as np

from engines.mlx import blas
from engines.mlx.engine import failed
from events.values import EngineReport


def main() -> None:
    """Print the report. A crash before that is for the parent to report."""
    try:
        report = _test()
    except ImportError as error:
        report = failed(f"MLX is not installed ({error}): `pip install 'cuebook[mlx]'`.")
    sys.stdout.buffer.write(msgspec.json.encode(report))


def _test() -> EngineReport:
    import mlx.core as mx
    import mlx_lm

    wrong = _difference()
    if wrong > 1e-2:
        return failed(f"MLX computes wrongly here: a product differs from numpy's by {wrong:.3g}.")
    kind = _kind()
    options = blas.in_use() if kind == "cpu" else {}
    hint = f" {blas.HOW_TO_GET}" if options.get("blas") == "netlib reference" else ""
    return EngineReport(
        engine="mlx",
        version=f"{mx.__version__} (mlx-lm {mlx_lm.__version__})",
        ok=True,
        detail=f"MLX computes on {kind}.{hint}",
        device_ids=[f"{kind}:0"],
        # A CPU converts bfloat16 around every product: half the speed of float32, measured.
        dtype="float32" if kind == "cpu" else "bfloat16",
        options=options,
    )


def _difference() -> float:
    """Largest difference to numpy in a product that one gemm and one gemv compute."""
    import mlx.core as mx

    draw = np.random.default_rng(0)
    a, b = (draw.normal(0, 0.1, shape).astype(np.float32) for shape in ((16, 64), (64, 48)))
    product = np.array(mx.array(a) @ mx.array(b))
    row = np.array(mx.array(a[:1]) @ mx.array(b))
    return float(max(np.abs(product - a @ b).max(), np.abs(row - a[:1] @ b).max()))


def _kind() -> str:
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


if __name__ == "__main__":
    main()
