"""Self-tests of engines, each in a process of its own: a node imports no engine and survives a crash."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import msgspec

from engines.contract import Tested
from engines.processes import python_environment
from events.values import EngineReport

_SECONDS = 120

MEASURE = "--measure"
"""The argument that asks a self-test for `EngineReport.speed` as well."""


def run(engine: str, module: str, environment: Mapping[str, str], *, measure: bool) -> Tested:
    """What ``python -m module`` prints as JSON, with its speed where that is to be measured.

    Never raises; a crash there is a report.
    """
    command = [sys.executable, "-m", module, *([MEASURE] if measure else [])]
    try:
        done = subprocess.run(
            command,
            env=python_environment() | dict(environment),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return failed(engine, f"The self-test did not end: {error}.")
    try:
        return msgspec.json.decode(done.stdout, type=Tested)
    except msgspec.DecodeError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return failed(engine, f"The self-test ended with exit code {done.returncode}: {last[0]}")


def failed(engine: str, detail: str) -> Tested:
    """What is said of an engine that can't be used here."""
    return Tested(
        report=EngineReport(
            engine=engine, version="", ok=False, detail=detail, device_ids=[], dtype="float32"
        )
    )


def show(tested: Tested) -> None:
    """Print it for `run`. To be called last: what else is printed spoils it."""
    sys.stdout.buffer.write(msgspec.json.encode(tested))
