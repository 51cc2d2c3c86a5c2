"""What a runner adds to mlx-lm's batch generator, in tokens per second through its socket.

Run ``python -m pytest tests/benchmarks/bench_engine.py -m benchmark -s``. The tiny model costs nearly
nothing, so that what is measured is the framework. The two alternate within one run.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from support.bare_batch import BareBatch
from support.runner_client import RunnerClient
from support.tiny import tiny_model_dir

from engines.wire import Generate, TaskDone
from events.values import Sampling

PROMPT, TOKENS, ROUNDS = 32, 1000, 5


@pytest.mark.benchmark
@pytest.mark.slow
def test_runner_against_batch_generator(tmp_path: Path) -> None:
    model = tiny_model_dir(tmp_path / "model", endless=True)
    bare = BareBatch(model)
    try:
        with RunnerClient() as runner:
            runner.ready(model, context=2048, prefill_chunk=512)
            for streams in (1, 8):
                compare(runner, bare, streams)
    finally:
        bare.close()


def compare(runner: RunnerClient, bare: BareBatch, streams: int) -> None:
    through_runner(runner, streams)
    bare.tokens_per_s(streams, PROMPT, TOKENS)
    pairs = [
        (through_runner(runner, streams), bare.tokens_per_s(streams, PROMPT, TOKENS)) for _ in range(ROUNDS)
    ]
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{streams} streams: runner {mine:,.0f} tokens/s, BatchGenerator alone {theirs:,.0f}, "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def through_runner(runner: RunnerClient, streams: int) -> float:
    sampling = Sampling(max_tokens=TOKENS, temperature=0.0, top_p=1.0, seed=0)
    tasks = [f"task-{len(runner.tasks) + n}" for n in range(streams)]
    began = time.perf_counter()
    for task in tasks:
        runner.send(Generate(task_id=task, kind="completion", sampling=sampling, tokens=list(range(PROMPT))))
    ends = [runner.outcome(task).end for task in tasks]
    assert all(isinstance(end, TaskDone) for end in ends)
    return TOKENS * streams / (time.perf_counter() - began)
