"""What a balance of experts gives and costs: skewed traffic, even traffic, and the pause of a move.

Run ``python -m pytest tests/benchmarks/bench_eplb_serving.py -m benchmark -s``. Ranks are processes of one
thread each, over gloo. Where they share cores, with each other or with other work, a rank's idleness is used
by others: then the busiest rank's own time for a token says more than tokens per second.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

torch = pytest.importorskip("torch")

from support.expert_moves import Mover, balanced_shard  # noqa: E402
from support.rank_group import RankGroup  # noqa: E402
from support.runner_client import RunnerClient  # noqa: E402
from support.tiny import VOCAB, tiny_model_dir  # noqa: E402
from support.upcycled import upcycle  # noqa: E402

from actors.eplb.metrics import balance, rank_loads  # noqa: E402
from actors.eplb.policy import POLICIES, propose  # noqa: E402
from actors.eplb.problem import Budget, Topology  # noqa: E402
from engines.contract import ExpertShard  # noqa: E402
from engines.wire import ExpertLoad, Generate, TaskDone  # noqa: E402
from events.values import Sampling  # noqa: E402

HIDDEN, FFN, LAYERS, EXPERTS = 1024, 2816, 2, 12
PROMPT, DRAWN, STREAMS, ROUNDS = 960, 2, 4, 5
CHUNK = 960
"""Prompt tokens in a pass: so many that an expert's work grows with its load.

With few rows an expert takes as long as its weights take to read, and balance gains nothing.
"""


def dense_dir(path: Path) -> Path:
    """A random llama that is large enough for its experts to be most of the work."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tiny = tiny_model_dir(path / "tiny", endless=True)
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_hidden_layers=LAYERS,
        vocab_size=VOCAB,
        max_position_embeddings=4096,
        eos_token_id=None,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).float().save_pretrained(path / "dense")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, path / "dense" / name)
    return path / "dense"


def busiest_us(group: RankGroup) -> tuple[float, float]:
    """Tokens per second, and the microseconds of CPU time that the busiest rank takes for a token."""
    processes = [psutil.Process(rank.process.pid) for rank in group.ranks]
    before = [sum(process.cpu_times()[:2]) for process in processes]
    rate = statistics.median(tokens_per_s(group.lead) for _ in range(ROUNDS))
    used = [sum(process.cpu_times()[:2]) - b for process, b in zip(processes, before, strict=True)]
    return rate, max(used) / (ROUNDS * STREAMS * (PROMPT + DRAWN)) * 1e6


def tokens_per_s(lead: RunnerClient) -> float:
    """Prompt tokens and drawn ones, of a few long prompts with short answers."""
    sampling = Sampling(max_tokens=DRAWN, temperature=0.0, top_p=1.0, seed=0)
    draw = np.random.default_rng(len(lead.tasks))
    tasks = [f"task-{len(lead.tasks) + n}" for n in range(STREAMS)]
    began = time.perf_counter()
    for task in tasks:
        prompt = draw.integers(0, VOCAB, PROMPT).tolist()
        lead.send(Generate(task_id=task, kind="completion", sampling=sampling, tokens=prompt))
    assert all(isinstance(lead.outcome(task, 300).end, TaskDone) for task in tasks)
    return STREAMS * (PROMPT + DRAWN) / (time.perf_counter() - began)


def loads_of(window: ExpertLoad, maps: list[list[int]]) -> np.ndarray:
    """Rows by logical expert, float64 [L, E]."""
    loads = np.zeros((len(maps), EXPERTS))
    for layer, placed in enumerate(maps):
        np.add.at(loads[layer], placed, np.asarray(window.counts[layer], dtype=np.float64))
    return loads


def fresh_window(mover: Mover) -> ExpertLoad:
    seen = len(mover.windows())
    while len(mover.windows()) == seen:
        tokens_per_s(mover.lead)
    return mover.windows()[-1]


@pytest.mark.benchmark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 3])
def test_skewed_traffic_before_and_after_a_rebalance(tmp_path: Path, world: int) -> None:
    """The first placement has the experts that routers like best together, on the first rank."""
    model = upcycle(dense_dir(tmp_path), tmp_path / "moe", experts=EXPERTS, noise=0.3, skew=4.0)
    shard = balanced_shard(
        LAYERS, EXPERTS, world, redundant=EXPERTS // 2, window=8, interval=8, phase="prefill"
    )
    with RankGroup(world, "torch") as group:
        mover = Mover(group.ready(model, "expert", experts=shard, prefill_chunk=CHUNK).lead, shard)
        gather_the_hot(mover, world)
        before, busy_before = busiest_us(group)
        loads = loads_of(fresh_window(mover), mover.maps)
        old = np.asarray(mover.maps, dtype=np.int32)
        new = propose(POLICIES["movement"], old, loads, Topology((0,) * world), Budget()).placement
        pauses = [pause_ms(mover, layer, new[layer].tolist()) for layer in range(LAYERS)]
        after, busy_after = busiest_us(group)
        seen = loads_of(fresh_window(mover), mover.maps)
    print(
        f"{world} ranks, skewed: {before:,.0f} tokens/s before, {after:,.0f} after, "
        f"ratio {after / before:.2f}; "
        f"busiest rank {busy_before:,.0f} us a token before, {busy_after:,.0f} after; "
        f"balance {balance(rank_loads(old, loads, world)):.2f} to {balance(rank_loads(new, seen, world)):.2f}"
    )
    for moves, size, stage, apply in pauses:
        print(f"  {moves} rows, {size / 1e6:.1f} MB sent: {stage:.1f} ms staging, {apply:.1f} ms applying")


def gather_the_hot(mover: Mover, world: int) -> None:
    """The worst placement: experts in the order of their load, the hottest on rank 0."""
    loads = loads_of(fresh_window(mover), mover.maps)
    for layer in range(LAYERS):
        order = np.argsort(-loads[layer], kind="stable").tolist()
        per_rank = len(mover.maps[layer]) // world
        hot = order[:per_rank]
        rest = [expert for expert in order if expert not in hot]
        spare = len(mover.maps[layer]) - EXPERTS
        mover.migrate(layer, [*hot, *rest, *([*rest, *order][-spare:])])


def pause_ms(mover: Mover, layer: int, new: list[int]) -> tuple[int, int, float, float]:
    """Rows moved, bytes sent, and the milliseconds in which no batch could run: staging, and applying."""
    mover.lead.send(
        Generate(
            task_id=f"task-{len(mover.lead.tasks)}",
            kind="completion",
            sampling=Sampling(max_tokens=100, temperature=0.0, top_p=1.0, seed=0),
            tokens=list(range(8)),
        )
    )
    staged, applied = mover.migrate(layer, new)
    return len(staged.slots), staged.bytes, staged.seconds * 1e3, applied.seconds * 1e3


@pytest.mark.benchmark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 3])
def test_even_traffic_with_and_without_a_balancer(tmp_path: Path, world: int) -> None:
    """The same experts in the same slots, with the settings that EPLB has by default."""
    model = upcycle(dense_dir(tmp_path), tmp_path / "moe", experts=EXPERTS, noise=0.3)
    plain = ExpertShard(dispatch="shared", format="plain", slots=EXPERTS)
    balanced = balanced_shard(LAYERS, EXPERTS, world, redundant=0)
    with RankGroup(world, "torch") as without, RankGroup(world, "torch") as with_it:
        leads = [
            group.ready(model, "expert", experts=shard, prefill_chunk=CHUNK).lead
            for group, shard in ((without, plain), (with_it, balanced))
        ]
        for lead in leads:
            tokens_per_s(lead)
        pairs = [[tokens_per_s(lead) for lead in leads] for _ in range(3 * ROUNDS)]
    ratios = sorted(on / off for off, on in pairs)
    off, on = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{world} ranks, even: {off:,.0f} tokens/s without EPLB, {on:,.0f} with, ratio "
        f"{statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )
