"""The runner's tokens are mlx-lm's own, and a seed gives the same answer whatever runs beside it.

Alone, the runner does the very computation of `mlx_lm.generate`: the same chunks, the same shapes. In a
batch, sequences share products of another shape (a gemm instead of a gemv, padded attention), whose sums
are added in another order: the last bits of the logits may differ, and a near tie may fall the other way.
The prompts here have none within their first tokens, so that equality can be asked for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mlx_lm.utils import load_tokenizer
from support.mlx_reference import reference
from support.runner_client import RunnerClient

from engines.wire import Generate
from events.values import Sampling

QUESTIONS = [
    "Write one sentence about the sea.",
    "What is the capital of France? Answer with one word.",
    "Count from one to five.",
    "Name a colour.",
    "Write one sentence about a theatre. " * 6,
    "Say hello.",
    "What do bees make?",
    "How many legs has a spider?",
]


def _prompts(model: Path) -> list[list[int]]:
    tokenizer = load_tokenizer(model)
    return [
        list(tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True))
        for q in QUESTIONS
    ]


def _equal_to_mlx_lm(model: Path, tokens: int, **load: int) -> None:
    prompts = _prompts(model)
    alone, batched = reference(model, prompts, tokens)
    greedy = Sampling(max_tokens=tokens, temperature=0.0, top_p=1.0, seed=0)
    with RunnerClient() as runner:
        runner.ready(model, **load)
        for n, question in enumerate(QUESTIONS):
            runner.chat(f"alone-{n}", question, greedy)
            assert runner.outcome(f"alone-{n}").tokens == _shown(alone[n], runner, f"alone-{n}"), question
        for n, prompt in enumerate(prompts):
            runner.send(Generate(task_id=f"batch-{n}", kind="completion", sampling=greedy, tokens=prompt))
        for n, question in enumerate(QUESTIONS):
            assert runner.outcome(f"batch-{n}").tokens == batched[n], question


def _shown(tokens: list[int], runner: RunnerClient, task_id: str) -> list[int]:
    """`mlx_lm.stream_generate` yields the end-of-sequence token, an answer does not show it."""
    end = runner.tasks[task_id].end
    return tokens[:-1] if end.usage.completion_tokens > len(runner.tasks[task_id].tokens) else tokens


def test_tiny_model(tiny: Path) -> None:
    _equal_to_mlx_lm(tiny, 40, context=1024, prefill_chunk=2048)


def test_prefill_in_small_chunks(endless: Path) -> None:
    _equal_to_mlx_lm(endless, 24, context=1024, prefill_chunk=16)


@pytest.mark.model
@pytest.mark.slow
def test_smollm2(smollm2: Path) -> None:
    _equal_to_mlx_lm(smollm2, 24, context=1024, prefill_chunk=512)


def test_a_seed_gives_the_same_tokens_alone_and_beside_others(endless: Path) -> None:
    drawn = Sampling(max_tokens=40, temperature=1.0, top_p=0.9, seed=4711)
    others = [drawn, Sampling(max_tokens=60, temperature=0.0, top_p=1.0, seed=1)]
    others += [Sampling(max_tokens=30 + n, temperature=0.8, top_p=1.0, seed=n) for n in range(5)]
    with RunnerClient() as runner:
        runner.ready(endless)
        runner.chat("alone", "once more", drawn)
        alone = runner.outcome("alone").tokens
        for n, sampling in enumerate(others):
            runner.chat(f"other-{n}", f"something else {n}", sampling)
        runner.chat("beside", "once more", drawn)
        assert runner.outcome("beside").tokens == alone
        runner.chat("other seed", "once more", Sampling(max_tokens=40, temperature=1.0, top_p=0.9, seed=4712))
        assert runner.outcome("other seed").tokens != alone
