"""One way of computing SmolLM2 in a process of its own: `python -m support.torch_loop WAY MODEL DTYPE`.

``torch`` and ``mlx`` are our engines, as a runner has them; ``transformers`` is the plain loop over a model
of transformers with its own cache. Each takes {kind, streams, prompt, tokens} and answers {tokens_per_s}.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.line_process import serve

from engines.cards import card_from_directory
from engines.contract import Generator, LoadSpec
from engines.registry import engine
from events.values import Sampling

Ask = Callable[[dict[str, Any]], float]


def prompt(n: int) -> list[int]:
    return [100 + 7 * k % 1000 for k in range(n)]


def ours(name: str, path: Path, dtype: str) -> Ask:
    card = card_from_directory(path)
    spec = LoadSpec(
        card=card,
        path=str(path),
        dtype=dtype,  # type: ignore[arg-type]
        context=1024,
        batch=8,
        start_layer=0,
        end_layer=card.n_layers,
        prefill_chunk=512,
    )
    builder = engine(name).builder(spec, None)
    builder.load(lambda layers, total: None)
    generator: Any = builder.warm_up()
    return lambda order: _timed(generator, order)


def _timed(generator: Generator, order: dict[str, Any]) -> float:
    """Decoding is timed from when all prompts are computed, a prompt until its first token."""
    tokens = 1 if order["kind"] == "prefill" else order["tokens"]
    for n in range(order["streams"]):
        sampling = Sampling(max_tokens=tokens, temperature=0.0, top_p=1.0, seed=0)
        generator.submit(f"task-{n}", prompt(order["prompt"]), sampling)
    began, drawn, started = time.perf_counter(), 0, set[str]()
    while generator.busy:
        for step in generator.step():
            if len(started) == order["streams"]:
                drawn += step.n_tokens
            elif step.n_tokens:
                started.add(step.task_id)
                if len(started) == order["streams"] and order["kind"] == "decode":
                    began = time.perf_counter()
    seconds = time.perf_counter() - began
    return (order["prompt"] if order["kind"] == "prefill" else drawn) / seconds


def theirs(path: Path, dtype: str) -> Ask:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def ask(order: dict[str, Any]) -> float:
        given = torch.tensor([prompt(order["prompt"])] * order["streams"])
        cache, began = DynamicCache(config=model.config), time.perf_counter()
        out = model(given, past_key_values=cache, logits_to_keep=1)
        last = out.logits[:, -1].argmax(dim=-1, keepdim=True)
        last.tolist()
        if order["kind"] == "prefill":
            return order["prompt"] / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(order["tokens"] - 1):
            out = model(last, past_key_values=cache)
            last = out.logits[:, -1].argmax(dim=-1, keepdim=True)
            last.tolist()
        return order["streams"] * (order["tokens"] - 1) / (time.perf_counter() - began)

    return ask


def main() -> None:
    way, path, dtype = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    ask = theirs(path, dtype) if way == "transformers" else ours(way, path, dtype)
    serve(lambda order: {"tokens_per_s": ask(order)})


if __name__ == "__main__":
    main()
