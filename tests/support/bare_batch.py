"""The batch generator of mlx-lm alone in a process, as a reference: `python -m support.bare_batch MODEL`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from engines.processes import python_environment
from engines.registry import engine


class BareBatch:
    """Computes the same prompts with nothing of ours, in the runner's environment."""

    def __init__(self, model: Path) -> None:
        environment = python_environment() | engine("mlx").environment(1)
        tests = str(Path(__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join([tests, environment["PYTHONPATH"]])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.bare_batch", str(model)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def tokens_per_s(self, streams: int, prompt_tokens: int, tokens: int) -> float:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{streams} {prompt_tokens} {tokens}\n")
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _compute(model: object, streams: int, prompt_tokens: int, tokens: int) -> float:
    from mlx_lm.generate import BatchGenerator

    generator = BatchGenerator(model, completion_batch_size=8, prefill_batch_size=1, prefill_step_size=512)
    began, seen = time.perf_counter(), 0
    generator.insert([list(range(prompt_tokens))] * streams, [tokens] * streams)
    while seen < tokens * streams:
        seen += len(generator.next()[1])
    return seen / (time.perf_counter() - began)


def main() -> None:
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(sys.argv[1]))
    for line in sys.stdin:
        print(_compute(model, *map(int, line.split())), flush=True)


if __name__ == "__main__":
    main()
