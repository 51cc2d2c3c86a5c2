"""The MLX engine alone: `python -m support.engine_alone MODEL BATCH CHUNK`, asked over its stdin.

It takes {prompts, tokens} and computes what a server would for the same chats, with the runner's own builder
and generator and nothing around them. It answers {seconds, first}, as `support.lean_client` does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from support.line_process import serve

from engines.cards import card_from_directory
from engines.contract import Generator, LoadSpec, Prompt
from engines.mlx.builder import MlxBuilder
from events.values import Sampling


def load(path: Path, batch: int, prefill_chunk: int) -> Generator:
    """The model, ready to step."""
    card = card_from_directory(path)
    spec = LoadSpec(
        card=card,
        path=str(path),
        dtype="float32",
        context=card.max_context,
        batch=batch,
        start_layer=0,
        end_layer=card.n_layers,
        prefill_chunk=prefill_chunk,
    )
    builder = MlxBuilder(spec)
    builder.load(lambda layers, total: None)
    return builder.warm_up()


def run(generator: Generator, order: dict[str, Any]) -> dict[str, object]:
    """Compute all prompts side by side."""
    began, first = time.perf_counter(), dict[str, float]()
    sampling = Sampling(max_tokens=order["tokens"], temperature=0.0, top_p=1.0, seed=0)
    for n, text in enumerate(order["prompts"]):
        prompt = Prompt(kind="chat", messages=[{"role": "user", "content": text}])
        generator.submit(f"task-{n}", generator.prepare(prompt, sampling), sampling)
    while generator.busy:
        for step in generator.step():
            if step.text and step.task_id not in first:
                first[step.task_id] = time.perf_counter() - began
    return {"seconds": time.perf_counter() - began, "first": list(first.values())}


if __name__ == "__main__":
    generator = load(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    serve(lambda order: run(generator, order))
