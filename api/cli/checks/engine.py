"""Which engines compute on this machine, and what would make them faster."""

from __future__ import annotations

from collections.abc import Iterator

from actors.settings import Settings
from api.cli.checks.finding import Finding
from engines.mlx import blas
from engines.registry import ENGINES
from events.values import EngineReport

_GET = "Install an engine with: pip install 'cuebook[mlx]' (Apple silicon or Linux) or 'cuebook[torch]'."


def check(settings: Settings) -> Iterator[Finding]:
    """Findings of every engine's self-test, on what decides the speed, and on NPUs that can't be used."""
    wanted = [ENGINES[name] for name in settings.engine_names]
    reports = [engine.self_test().report for engine in wanted if engine.installed()]
    if not reports:
        yield Finding("fail", "engine", "no engine is installed", _GET)
    for report in reports:
        yield _verdict(report, alone=not any(other.ok for other in reports))
        if report.ok and report.engine == "mlx" and blas.wanted():
            yield _blas(report)
        if report.ok and report.engine == "torch":
            yield from _torch(report)


def _verdict(report: EngineReport, *, alone: bool) -> Finding:
    if not report.ok:
        text = f"{report.engine} can't be used: {report.detail}"
        return Finding("fail" if alone else "warn", "engine", text, _GET)
    where = f"on {', '.join(report.device_ids)} in {report.dtype}"
    text = f"{report.engine} {report.version} passed its self-test {where}: {report.detail}"
    return Finding("ok", "engine", text)


def _torch(report: EngineReport) -> Iterator[Finding]:
    yield Finding("ok", "engine", f"torch: {report.options['dtype']}")
    if why := report.options.get("npu"):
        yield Finding("warn", "engine", f"torch uses no NPU: {why}")


def _blas(report: EngineReport) -> Finding:
    used = report.options.get("blas", "unknown")
    if used.startswith("openblas"):
        return Finding("ok", "engine", f"BLAS is {used}")
    return Finding("warn", "engine", f"BLAS is {used}", blas.HOW_TO_GET)
