"""mlx-lm's own generation in a process alone: `python -m support.mlx_reference MODEL`, requests on stdin.

It runs with the runner's environment, because another BLAS or number of threads changes the last bits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from engines.processes import python_environment
from engines.registry import engine

Prompts = list[list[int]]


def reference(model: Path, prompts: Prompts, max_tokens: int, *, threads: int = 1) -> tuple[Prompts, Prompts]:
    """Greedy tokens of every prompt, each alone by `mlx_lm.generate` and all in `mlx_lm.batch_generate`."""
    tests = str(Path(__file__).resolve().parents[1])
    environment = python_environment() | engine("mlx").environment(threads)
    environment["PYTHONPATH"] = os.pathsep.join([tests, environment["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "support.mlx_reference", str(model)],
        input=json.dumps({"prompts": prompts, "max_tokens": max_tokens}),
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    alone, batched = json.loads(done.stdout)
    return alone, batched


def main() -> None:
    import mlx.core as mx
    from mlx_lm import batch_generate, stream_generate
    from mlx_lm.utils import load

    request = json.load(sys.stdin)
    model, tokenizer = load(sys.argv[1])
    model.set_dtype(mx.float32)
    n = request["max_tokens"]
    alone = [
        [r.token for r in stream_generate(model, tokenizer, prompt, max_tokens=n)]
        for prompt in request["prompts"]
    ]
    batched = batch_generate(model, tokenizer, request["prompts"], max_tokens=n, return_token_ids=True)
    json.dump([alone, batched.token_ids], sys.stdout)


if __name__ == "__main__":
    main()
