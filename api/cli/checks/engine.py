"""Which engines compute on this machine, and what would make them faster."""

from __future__ import annotations

from collections.abc import Iterator

from api.cli.checks.finding import Finding
from engines.mlx import blas
from engines.registry import ENGINES
from events.values import EngineReport

_GET_MLX = "Install the engine with: pip install 'cuebook[mlx]' (Apple silicon or Linux)."


def check() -> Iterator[Finding]:
    """Findings of every engine's self-test, and on the BLAS where it decides the speed."""
    for engine in ENGINES.values():
        report = engine.self_test()
        yield _verdict(report)
        if report.ok and report.engine == "mlx" and blas.wanted():
            yield _blas(report)


def _verdict(report: EngineReport) -> Finding:
    if not report.ok:
        return Finding("fail", "engine", f"{report.engine} can't be used: {report.detail}", _GET_MLX)
    where = f"on {', '.join(report.device_ids)} in {report.dtype}"
    text = f"{report.engine} {report.version} passed its self-test {where}: {report.detail}"
    return Finding("ok", "engine", text)


def _blas(report: EngineReport) -> Finding:
    used = report.options.get("blas", "unknown")
    if used.startswith("openblas"):
        return Finding("ok", "engine", f"BLAS is {used}")
    return Finding("warn", "engine", f"BLAS is {used}", blas.HOW_TO_GET)
