"""Tokens to experts and back: every (token, expert) once over all ranks, and no rank waits for its device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from hypothesis import Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support.expert_moves import random_map  # noqa: E402
from support.expert_ranks import CPU, ExpertRanks, Rank, forward, load  # noqa: E402
from support.tiny_moe import EXPERTS, config, some_tokens  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from engines.contract import ExpertShard  # noqa: E402
from engines.experts import maps  # noqa: E402
from engines.torch.eplb.adapter import token_rows  # noqa: E402
from engines.torch.experts.dispatch import AllToAll, Shared  # noqa: E402
from engines.torch.experts.grouping import pairs  # noqa: E402
from engines.torch.experts.parallel import ExpertParallel  # noqa: E402
from events.experts import EplbSettings  # noqa: E402

PER_RANK = 4
DISPATCHES = ["shared", "all_to_all"]
WAITS = ("item", "_local_scalar_dense", "nonzero", "tolist", "unique", "masked_select")


@given(data=st.data())
@settings(  # a failure is not shrunk: each costs new ranks
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
def test_every_token_and_expert_meet_exactly_once_over_all_ranks(
    expert_ranks: ExpertRanks, data: st.DataObject
) -> None:
    world = data.draw(st.integers(1, 3), "ranks")
    dispatch = data.draw(st.sampled_from(DISPATCHES), "dispatch")
    experts = data.draw(st.integers(2, PER_RANK * world), "experts")
    layer = random_map(data.draw(st.randoms(), "map"), experts, PER_RANK * world, world)
    n_tokens = data.draw(st.integers(1, 9), "tokens")
    k = data.draw(st.integers(1, min(3, experts)), "choices")
    chosen = np.stack(
        [data.draw(st.permutations(range(experts)).map(lambda p: p[:k]), "choice") for _ in range(n_tokens)]
    )
    answers = expert_ranks.run(world, _coverage, dispatch, layer, experts, chosen)
    slots = maps.lookup_table(layer, experts)[_rows(n_tokens), chosen.T].T
    wanted = np.zeros((n_tokens, len(layer)))
    np.put_along_axis(wanted, slots, 1, axis=1)
    for found in answers:
        np.testing.assert_array_equal(found, wanted)


def _rows(n: int) -> Any:
    return token_rows(torch.arange(n).unsqueeze(0), [7]).numpy()


def _coverage(rank: Rank, dispatch: str, layer: list[int], experts: int, chosen: Any) -> Any:
    """[tokens, slots]: how often each slot computed each token, as all ranks have it in the end."""
    way = (
        Shared(rank.world, rank.group)
        if dispatch == "shared"
        else AllToAll(rank.rank, rank.world, rank.group, PER_RANK)
    )
    table = torch.from_numpy(maps.lookup_table(layer, experts))
    slots = table[torch.from_numpy(_rows(len(chosen)))[:, None], torch.from_numpy(chosen)]
    mine = way.local(slots)
    real = way.local(torch.ones(len(chosen), dtype=torch.bool))

    def compute(states: Any, ids: Any, weights: Any) -> Any:
        here = pairs(ids, rank.rank * PER_RANK, torch.arange(PER_RANK))
        hits = torch.zeros(len(states), len(layer))
        rows = torch.arange(len(states)).repeat_interleave(ids.shape[1])
        ran = ~here.outside
        # All to all tells a rank of its own experts alone.
        assert dispatch == "shared" or (ids.reshape(-1)[here.outside] == -1).all()
        # A pair's own row must be one of its slot, or another's result would be taken for its.
        assert (here.groups.slots[here.place[ran]] + rank.rank * PER_RANK == ids.reshape(-1)[ran]).all()
        hits.index_put_((rows[ran], ids.reshape(-1)[ran].long()), weights.reshape(-1)[ran], accumulate=True)
        return hits

    ids = mine.masked_fill(~real.unsqueeze(-1), -1)
    return way.run(torch.zeros(len(chosen), len(layer)), ids, torch.ones(ids.shape), compute).numpy()


def test_slices_of_all_ranks_are_all_tokens() -> None:
    for n in range(1, 8):
        slices = [AllToAll(rank, 3, None, 2).local(torch.arange(1, n + 1)) for rank in range(3)]
        assert len({len(one) for one in slices}) == 1
        assert [t for t in torch.cat(slices).tolist() if t] == list(range(1, n + 1))


class _Calls(TorchDispatchMode):
    """Names of all operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__.split(".")[0])
        return func(*args, **(kwargs or {}))


def calls(experts: int, n_tokens: int, dispatch: Any, format: Any, *, eplb: bool) -> list[str]:
    """Operators of one pass through a small model, a balancer counting where there is one."""
    model = AutoModelForCausalLM.from_config(config("qwen3_moe", experts)).eval().requires_grad_(False)
    settings = EplbSettings(redundant_experts=2, window=1, interval=1) if eplb else None
    slots = experts + 2 if eplb else experts
    shard = ExpertShard(dispatch=dispatch, format=format, slots=slots, eplb=settings)
    parallel = ExpertParallel(shard, rank=0, world=1, group=None, dtype=torch.float32, device=CPU)
    parallel.prepare(model)
    for tensor in parallel.layers[0].weights.tensors.values():
        tensor.zero_()
    with _Calls() as seen:
        forward(model, parallel, some_tokens(1, n_tokens))
    return seen.names


@pytest.mark.parametrize("eplb", [False, True])
@pytest.mark.parametrize("format", ["plain", "int8"])
@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_invariant_8_no_wait_for_the_device_and_no_loop_over_tokens_or_experts(
    dispatch: str, format: str, eplb: bool
) -> None:
    first = calls(8, 32, dispatch, format, eplb=eplb)
    assert "_grouped_mm" in first
    assert not [name for name in first if name in WAITS]
    assert first == calls(16, 64, dispatch, format, eplb=eplb) == calls(4, 128, dispatch, format, eplb=eplb)
    few = calls(16, 2, dispatch, format, eplb=eplb)
    assert not [name for name in few if name in WAITS]
    assert few == calls(32, 5, dispatch, format, eplb=eplb)


def test_invariant_8_on_several_ranks(expert_ranks: ExpertRanks, tiny_moes: dict[str, Path]) -> None:
    for dispatch in ("shared", "all_to_all"):
        shard = ExpertShard(dispatch=dispatch, format="plain", slots=EXPERTS + 2, eplb=EplbSettings())
        for few, many in expert_ranks.run(2, _calls_of_ranks, tiny_moes["qwen3_moe"], shard):
            assert few == many
            assert not [name for name in few if name in WAITS]


def _calls_of_ranks(rank: Rank, path: Path, shard: ExpertShard) -> Any:
    model, parallel = load(rank, path, shard)
    found: list[list[str]] = []
    for n in (8, 64):
        with _Calls() as seen:
            forward(model, parallel, some_tokens(1, n))
        found.append(seen.names)
    return found


@pytest.mark.parametrize("format", ["plain", "int8"])
@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_invariant_8_experts_trace_without_values(dispatch: Any, format: Any) -> None:
    """Tensors that have shapes and nothing else: whatever asks for a value fails."""
    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(config("mixtral"), dtype=torch.bfloat16)
        shard = ExpertShard(dispatch=dispatch, format=format, slots=EXPERTS)
        parallel = ExpertParallel(shard, rank=0, world=1, group=None, dtype=torch.bfloat16, device=CPU)
        parallel.prepare(model)
        block: Any = model.model.layers[0].mlp
        parallel.facts.begin(torch.zeros(2, 5, dtype=torch.int64), [0, 1])
        assert block(torch.zeros(2, 5, 32, dtype=torch.bfloat16)).shape == (2, 5, 32)
