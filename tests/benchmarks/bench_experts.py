"""One MoE layer's experts in each of our formats against transformers' own implementations, in one process.

Run it: ``python tests/benchmarks/bench_experts.py [--dtype bfloat16] [--seconds S]``. The layer has 16
experts of 2048 x 1024, 4 a token. Calls of all cases are interleaved; each number is the median, a ratio the
median time of transformers' grouped products over the case's. Ours with a balancer count and look slots up.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from engines.contract import ExpertShard
from engines.torch.experts.layer import IMPLEMENTATION
from engines.torch.experts.parallel import ExpertParallel
from events.experts import EplbSettings

EXPERTS, CHOICES, HIDDEN, INNER = 16, 4, 2048, 1024
CPU = torch.device("cpu")
Case = Callable[[torch.Tensor], object]


def transformers_block(implementation: str, dtype: torch.dtype) -> Any:
    config = AutoConfig.for_model(
        "qwen3_moe",
        hidden_size=HIDDEN,
        moe_intermediate_size=INNER,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOICES,
        norm_topk_prob=True,
        experts_implementation=implementation,
    )
    block = Qwen3MoeSparseMoeBlock(config).to(dtype).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(1)
    for parameter in block.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=draw) * 0.05)
    return block


class _Model(torch.nn.Module):
    """As much of a model as expert parallelism asks for."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.config = block.experts.config
        layer = torch.nn.Module()
        layer.mlp = block
        self.layers = torch.nn.ModuleList([layer])

    def get_decoder(self) -> Any:
        return self

    def set_experts_implementation(self, name: str) -> None:
        self.config._experts_implementation = name


def our_block(format: Any, dtype: torch.dtype, *, eplb: bool) -> Case:
    block = transformers_block("grouped_mm", dtype)
    whole, down = block.experts.gate_up_proj, block.experts.down_proj
    shard = ExpertShard(
        dispatch="shared",
        format=format,
        slots=EXPERTS,
        eplb=EplbSettings(window=1, interval=1_000_000_000) if eplb else None,
    )
    parallel = ExpertParallel(shard, rank=0, world=1, group=None, dtype=dtype, device=CPU)
    model: Any = _Model(block)
    parallel.prepare(model)
    assert model.config._experts_implementation == IMPLEMENTATION
    assert IMPLEMENTATION in ALL_EXPERTS_FUNCTIONS
    for slot in range(EXPERTS):
        parallel.layers[0].weights.fill(slot, *whole[slot].chunk(2), down[slot])

    def call(hidden: torch.Tensor) -> object:
        if parallel.recorder is not None:
            parallel.facts.loads = parallel.recorder.counts
        parallel.facts.begin(torch.arange(hidden.shape[1]).unsqueeze(0), [0])
        return block(hidden)

    return call


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float16"])
    arguments.add_argument("--seconds", type=float, default=4.0, help="for each number of tokens")
    arguments.add_argument("--threads", type=int, default=1)
    chosen = arguments.parse_args()
    torch.set_num_threads(chosen.threads)
    dtype = getattr(torch, chosen.dtype)
    cases: dict[str, Case] = {
        "transformers grouped_mm": transformers_block("grouped_mm", dtype),
        "transformers eager": transformers_block("eager", dtype),
        "transformers batched_mm": transformers_block("batched_mm", dtype),
        "plain": our_block("plain", dtype, eplb=False),
        "plain, balanced": our_block("plain", dtype, eplb=True),
        "int8": our_block("int8", dtype, eplb=False),
    }
    for n_tokens in (1, 8, 64, 512):
        report(n_tokens, cases, dtype, chosen.seconds)


def report(n_tokens: int, cases: dict[str, Case], dtype: torch.dtype, seconds: float) -> None:
    if n_tokens > 8:  # it copies the weights of each pair: minutes, and many gigabytes
        cases = {name: case for name, case in cases.items() if "batched" not in name}
    times: dict[str, list[float]] = {name: [] for name in cases}
    hidden = torch.randn(1, n_tokens, HIDDEN, generator=torch.Generator().manual_seed(2)).to(dtype)
    ends = time.perf_counter() + seconds
    with torch.inference_mode():
        while time.perf_counter() < ends or not times["plain"][2:]:
            for name, case in cases.items():
                began = time.perf_counter()
                case(hidden)
                times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(found) for name, found in times.items()}
    print(f"{n_tokens} tokens, {dtype}")
    for name, median in medians.items():
        print(f"  {name:26} {median * 1e3:9.3f} ms  {medians['transformers grouped_mm'] / median:6.2f}")


if __name__ == "__main__":
    main()
