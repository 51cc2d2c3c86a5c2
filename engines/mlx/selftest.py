"""`python -m engines.mlx.selftest`: compute something with MLX and print an `EngineReport` as JSON."""

from __future__ import annotations

import sys
from importlib.metadata import version

import numpy as np

from engines.contract import Tested
from engines.mlx import blas
from engines.self_tests import MEASURE, failed, show
from events.values import EngineReport


def main(*, measure: bool) -> None:
    """Print the report. A crash before that is for the parent to report."""
    try:
        tested = _test(measure=measure)
    except ImportError as error:
        tested = failed("mlx", f"MLX is not installed ({error}): `pip install 'cuebook[mlx]'`.")
    show(tested)


def _test(*, measure: bool) -> Tested:
    if not _computes():
        return failed("mlx", "MLX computes wrongly here: a small product differs from numpy's.")
    kind = _kind()
    options = blas.in_use() if kind == "cpu" else {}
    if found := _rdma():
        options["rdma"] = " ".join(found)
    hint = f" {blas.HOW_TO_GET}" if options.get("blas") == blas.REFERENCE["blas"] else ""
    report = EngineReport(
        engine="mlx",
        version=f"{version('mlx')} (mlx-lm {version('mlx-lm')})",
        ok=True,
        detail=f"MLX computes on {kind}.{hint}",
        device_ids=[f"{kind}:0"],
        # On a CPU bfloat16 takes 1.5 times as long in decode and 8 times in prefill (SmolLM2, OpenBLAS).
        dtype="float32" if kind == "cpu" else "bfloat16",
        options=options,
        speed=_speed() if measure else 0.0,
    )
    return Tested(report=report)


def _speed() -> float:
    from engines.mlx.speed_kit import MlxKit
    from engines.speed import tokens_per_second

    return tokens_per_second(MlxKit())


def _computes() -> bool:
    """True where the product that a gemm and the one that a gemv computes are numpy's."""
    import mlx.core as mx

    draw = np.random.default_rng(0)
    a, b = (draw.normal(0, 0.1, shape).astype(np.float32) for shape in ((16, 64), (64, 48)))
    return all(mx.allclose(mx.array(x) @ mx.array(b), mx.array(x @ b), atol=1e-2) for x in (a, a[:1]))


def _rdma() -> list[str]:
    from engines.mlx import rdma

    return rdma.devices()


def _kind() -> str:
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


if __name__ == "__main__":
    main(measure=MEASURE in sys.argv)
