"""The torch engine against transformers' own eager loop and the MLX engine, on SmolLM2.

Run ``python -m pytest tests/benchmarks/bench_torch.py -m benchmark -s``. Each has a process of its own with
one thread; they are asked in turn within one run, and the ratios are those of neighbours in time. MLX
computes in the dtype that its self-test chooses. The aim is 0.9 of transformers, and more than MLX.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.line_process import LineProcess

from engines.registry import engine

pytest.importorskip("torch")

WORK = {
    "decode, 1 stream": {"kind": "decode", "streams": 1, "prompt": 64, "tokens": 48},
    "decode, 8 streams": {"kind": "decode", "streams": 8, "prompt": 64, "tokens": 48},
    "prefill of 512": {"kind": "prefill", "streams": 1, "prompt": 512, "tokens": 1},
}
ROUNDS = 5


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
@pytest.mark.slow
@pytest.mark.model
def test_torch_against_transformers_and_mlx(smollm2: Path) -> None:
    dtype = engine("torch").self_test().report.dtype
    ways = {"torch": dtype, "transformers": dtype, "mlx": engine("mlx").self_test().report.dtype}
    with ExitStack() as stack:
        processes = {
            way: stack.enter_context(_process(way, smollm2, its_dtype)) for way, its_dtype in ways.items()
        }
        for name, order in WORK.items():
            for process in processes.values():
                process.ask(order)
            rounds = [
                {way: process.ask(order)["tokens_per_s"] for way, process in processes.items()}
                for _ in range(ROUNDS)
            ]
            print(f"{name} ({dtype}): {_line(rounds)}")


def _process(way: str, model: Path, dtype: str) -> LineProcess:
    name = "torch" if way == "transformers" else way
    return LineProcess("support.torch_loop", way, str(model), dtype, environment=engine(name).environment(1))


def _line(rounds: list[dict[str, float]]) -> str:
    speeds = ", ".join(f"{way} {statistics.median(r[way] for r in rounds):,.1f}" for way in rounds[0])
    ratios = ", ".join(
        f"{statistics.median(r['torch'] / r[way] for r in rounds):.2f} of {way}"
        for way in ("transformers", "mlx")
    )
    return f"{speeds} tokens/s; torch is {ratios}"
