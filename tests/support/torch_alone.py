"""The torch engine in this process, and transformers' own generation beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from engines.cards import card_from_directory
from engines.contract import LoadSpec, Step
from engines.generator import BatchedGenerator
from engines.torch.builder import TorchBuilder
from events.values import ModelCard, Sampling

torch.set_num_threads(1)  # as the runners of the tests: another number changes the last bits


def spec(path: Path, *, card: ModelCard | None = None, **changes: Any) -> LoadSpec:
    card = card or card_from_directory(path)
    fields: dict[str, Any] = {
        "card": card,
        "path": str(path),
        "dtype": "float32",
        "context": 1024,
        "batch": 8,
        "start_layer": 0,
        "end_layer": card.n_layers,
        "prefill_chunk": 512,
    }
    return LoadSpec(**(fields | changes))


def loaded(path: Path, **changes: Any) -> BatchedGenerator:
    builder = TorchBuilder(spec(path, **changes))
    builder.load(lambda layers, total: None)
    generator = builder.warm_up()
    assert isinstance(generator, BatchedGenerator)
    return generator


def greedy(tokens: int, **changes: Any) -> Sampling:
    return Sampling(**({"max_tokens": tokens, "temperature": 0.0, "top_p": 1.0, "seed": 0} | changes))


def run(
    generator: BatchedGenerator, tasks: dict[str, tuple[Sequence[int], Sampling]]
) -> dict[str, list[Step]]:
    """All tasks side by side, each with its steps."""
    for task_id, (prompt, sampling) in tasks.items():
        generator.submit(task_id, prompt, sampling)
    steps: dict[str, list[Step]] = {task_id: [] for task_id in tasks}
    while generator.busy:
        for step in generator.step():
            steps[step.task_id].append(step)
    return steps


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def transformers_tokens(path: Path, prompts: list[list[int]], n: int) -> list[list[int]]:
    """What `generate` of transformers draws greedily, prompt by prompt, without the end-of-sequence token."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    eos = model.generation_config.eos_token_id
    ends = eos if isinstance(eos, list) else [eos]
    answers = []
    for prompt in prompts:
        given = torch.tensor([prompt])
        out = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=n, do_sample=False, pad_token_id=0
        )
        answer = out[0, len(prompt) :].tolist()
        answers.append(answer[:-1] if answer[-1] in ends else answer)
    return answers
