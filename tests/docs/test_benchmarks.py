"""Benchmarks run by hand only: what they are made of must still be there when somebody does."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("bench_*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_can_be_started(path: Path) -> None:
    if "import torch" in path.read_text():
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    assert runpy.run_path(str(path), run_name=path.stem)
