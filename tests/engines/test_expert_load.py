"""Routing by a lookup table that is always the same tensor, and counts of what really ran."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from support.expert_moves import random_map  # noqa: E402
from support.expert_ranks import CPU, ExpertRanks, Rank, forward, load, replace  # noqa: E402
from support.tiny_moe import EXPERTS, FAMILIES, MOE_LAYERS, some_tokens  # noqa: E402

from engines.contract import ExpertShard  # noqa: E402
from engines.experts import maps  # noqa: E402
from engines.torch.eplb.adapter import RouterAdapter, token_rows  # noqa: E402
from engines.torch.eplb.recorder import LoadRecorder  # noqa: E402
from engines.torch.eplb.windows import LoadWindows  # noqa: E402
from engines.torch.experts.dispatch import Shared  # noqa: E402
from engines.torch.experts.facts import BatchFacts  # noqa: E402
from engines.torch.passes import Pass  # noqa: E402
from events.experts import EplbSettings  # noqa: E402

ALONE = Rank(0, 1, None)
CHOICES = {"qwen2_moe": 3}


def shard(dispatch: Any = "shared", slots: int = EXPERTS + 2, **settings: Any) -> ExpertShard:
    eplb = EplbSettings(**{"window": 1, "interval": 1} | settings)
    return ExpertShard(dispatch=dispatch, format="plain", slots=slots, eplb=eplb)


def test_invariant_2_selection_runs_once_a_layer_and_pass(tiny_moes: dict[str, Path]) -> None:
    model, parallel = load(ALONE, tiny_moes["mixtral"], shard())
    calls: list[int] = []
    for number, layer in enumerate(model.model.layers):
        layer.mlp.gate.register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    for _ in range(3):
        forward(model, parallel, some_tokens(2, 4))
    assert calls == [0, 1, 2] * 3


def test_invariant_2_experts_get_slots_and_not_what_the_router_chose(tiny_moes: dict[str, Path]) -> None:
    model, parallel = load(ALONE, tiny_moes["mixtral"], shard())
    new = [5, 4, 3, 2, 1, 0, 5, 4]
    replace(tiny_moes["mixtral"], parallel, 0, new)
    gate = model.model.layers[0].mlp.gate
    chosen: list[Any] = []
    gate.register_forward_hook(lambda _module, _args, out: chosen.append(out[2].clone()), prepend=True)
    gate.register_forward_hook(lambda _module, _args, out: chosen.append(out[2].clone()))
    forward(model, parallel, some_tokens(2, 9))
    logical, physical = chosen
    assert int(logical.max()) < EXPERTS
    assert torch.equal(torch.tensor(new)[physical.long()], logical)
    assert not torch.equal(physical, logical)
    assert {6, 7} & set(physical.flatten().tolist())


def test_invariant_3_a_lookup_keeps_its_identity_over_100_refreshes() -> None:
    chance = random.Random(1)
    facts = BatchFacts(Shared(1, None))
    adapter = RouterAdapter(facts, maps.initial(6, 9, 3), 6, CPU)
    lookup, address = adapter.lookup, adapter.lookup.data_ptr()
    for _ in range(100):
        layer = random_map(chance, 6, 9, 3)
        adapter.refresh(layer)
        assert adapter.lookup is lookup
        assert lookup.data_ptr() == address
        wanted = maps.lookup_table(layer, 6)
        assert maps.digest(layer, adapter.live()) == maps.digest(layer, wanted)


def test_tokens_of_one_sequence_and_of_one_batch_spread_over_all_rows() -> None:
    in_time = torch.cat([token_rows(torch.tensor([[position]]), [3]) for position in range(4200)])
    in_batch = token_rows(torch.full((4200, 1), 17), range(4200))
    for rows in (in_time, in_batch):
        assert 0 <= int(rows.min()) <= int(rows.max()) < maps.ROWS
        for copies in (2, 3, 5):
            shares = torch.bincount(rows % copies) / len(rows)
            assert (shares * copies - 1).abs().max() < 0.1
    assert torch.equal(token_rows(torch.tensor([[4], [9]]), [1, 2])[1:], token_rows(torch.tensor([[9]]), [2]))


@pytest.mark.parametrize("dispatch", ["shared", "all_to_all"])
def test_invariant_4_counts_are_what_ran_and_nothing_of_padding(
    expert_ranks: ExpertRanks, tiny_moes: dict[str, Path], dispatch: Any
) -> None:
    tokens = some_tokens(3, 5)
    real = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 4 + [True]])
    for family in FAMILIES:
        for world in (1, 2, 3):
            slots = EXPERTS + {1: 2, 2: 4, 3: 3}[world]
            answers = expert_ranks.run(
                world, _counted, tiny_moes[family], shard(dispatch, slots), tokens.numpy(), real.numpy()
            )
            counts = np.concatenate([answer["counts"] for answer in answers], axis=1)
            assert (counts.sum(axis=1) == real.sum().item() * CHOICES.get(family, 2)).all()
            assert {answer["tokens"] for answer in answers} == {real.sum().item()}
            seen = answers[:1] if dispatch == "shared" else answers
            for number in range(MOE_LAYERS[family]):
                wanted = sum(np.bincount(one["slots"][number], minlength=slots) for one in seen)
                np.testing.assert_array_equal(counts[number], wanted)


def _counted(rank: Rank, path: Path, shard: ExpertShard, tokens: Any, real: Any) -> dict[str, Any]:
    """What the recorder has, and the slots of real tokens as the router alone tells them."""
    model, parallel = load(rank, path, shard)
    chosen: list[Any] = []
    for layer in parallel.layers:
        gate = model.model.layers[layer.index].mlp.gate
        gate.register_forward_hook(lambda _module, _args, out: chosen.append(out[2].clone()), prepend=True)
    forward(model, parallel, torch.from_numpy(tokens), torch.from_numpy(real))
    facts = parallel.facts
    assert facts.real is not None
    assert facts.rows is not None
    slots = [
        maps.lookup_table(layer.map, EXPERTS)[facts.rows[:, None].numpy(), one.numpy()][
            facts.real.numpy()
        ].ravel()
        for layer, one in zip(parallel.layers, chosen, strict=True)
    ]
    assert parallel.recorder is not None
    window = parallel.recorder.take()
    return {"counts": window.counts, "tokens": window.tokens, "slots": slots}


def test_counts_are_taken_after_the_product(tiny_moes: dict[str, Path]) -> None:
    """What did not run does not count: the experts fail here."""
    model, parallel = load(ALONE, tiny_moes["mixtral"], shard())
    assert parallel.recorder is not None

    def failing(*_: Any) -> Any:
        raise RuntimeError("no product")

    parallel.layers[1].weights.down = failing
    with pytest.raises(RuntimeError, match="no product"):
        forward(model, parallel, some_tokens(1, 4))
    assert parallel.recorder.take().counts.sum(axis=1).tolist() == [8, 0, 0]


class Recording:
    """A recorder whose every counting pass adds one."""

    def __init__(self, **settings: Any) -> None:
        self.facts = BatchFacts(Shared(1, None))
        self.recorder = LoadRecorder(self.facts, EplbSettings(**settings), 1, 1, CPU)

    def passes(self, kinds: str) -> list[int]:
        """``p`` and ``d`` for passes of prefill and decode; the counts of the windows that close."""
        closed: list[int] = []
        for kind in kinds:
            self.recorder.begin(prefill=kind == "p", tokens=1)
            if self.facts.loads is not None:
                self.facts.loads.add_(1)
            if self.recorder.due:
                window = self.recorder.take()
                assert window.steps == window.tokens == window.counts.sum()
                closed.append(window.steps)
        return closed


@pytest.mark.parametrize(
    ("phase", "window", "closed"),
    [
        ("all", 4, [4, 4]),
        ("prefill", 4, [2, 1]),
        ("decode", 4, [2, 3]),
        ("all", 2, [2, 2]),
        ("prefill", 2, [1, 0]),
    ],
)
def test_invariant_4_passes_of_another_phase_move_the_clock_and_not_the_counts(
    phase: str, window: int, closed: list[int]
) -> None:
    assert Recording(phase=phase, window=window, interval=4).passes("pddp" + "pddd" + "pp") == closed


def test_a_window_lies_within_one_epoch() -> None:
    recording = Recording(window=4, interval=4)
    assert recording.passes("ddd") == []
    recording.recorder.reset()
    assert recording.facts.loads is None
    assert recording.passes("ddd") == []
    assert recording.passes("d") == [4]


class OneRank:
    """As much of a group as load windows need, with one rank in it."""

    bandwidth = 1.0

    def synchronize(self) -> None: ...

    def gather(self, rows: Any) -> Any:
        return rows[None]


def test_a_window_that_closed_before_a_restart_is_not_reported() -> None:
    recorder = LoadRecorder(BatchFacts(Shared(1, None)), EplbSettings(window=1, interval=1), 1, 1, CPU)
    windows = LoadWindows(OneRank(), recorder)  # type: ignore[arg-type]
    compute = windows.counted(lambda _: torch.zeros(1))
    column = torch.zeros(1, 1, dtype=torch.int64)
    passed = Pass(tokens=column, positions=column, uids=[0], first_slot=0, end=1, is_prefill=True)
    compute(passed)  # of the warm-up
    windows.restart(3)
    assert windows.take() is None
    compute(passed)
    assert (window := windows.take()) is not None
    assert window.epoch == 3


def test_a_step_of_two_passes_may_close_two_windows() -> None:
    recorder = LoadRecorder(BatchFacts(Shared(1, None)), EplbSettings(window=1, interval=1), 1, 1, CPU)
    windows = LoadWindows(OneRank(), recorder)  # type: ignore[arg-type]
    compute = windows.counted(lambda _: torch.zeros(1))
    for n_tokens, is_prefill in ((1, False), (9, True)):
        row = torch.zeros(1, n_tokens, dtype=torch.int64)
        compute(Pass(row, row, uids=[0], first_slot=0, end=n_tokens, is_prefill=is_prefill))
    found = [windows.take(), windows.take(), windows.take()]
    assert [(each.window, each.tokens) for each in found if each is not None] == [(1, 1), (2, 9)]


_OFF = """
import sys, torch
from pathlib import Path
from support.expert_ranks import Rank, forward, load
from support.tiny_moe import EXPERTS, logits, reference, some_tokens
from engines.contract import ExpertShard
torch.set_num_threads(1)
for dtype in (torch.float32, torch.bfloat16):
    for dispatch in ("shared", "all_to_all"):
        shard = ExpertShard(dispatch=dispatch, format="plain", slots=EXPERTS)
        for path in map(Path, sys.argv[1:]):
            model, parallel = load(Rank(0, 1, None), path, shard, dtype)
            wanted = logits(reference(path, "plain", dtype=dtype), some_tokens(2, 6))
            assert torch.equal(forward(model, parallel, some_tokens(2, 6)), wanted), path
            hooks = [m for m in model.modules() if m._forward_hooks]
            assert not hooks and parallel.recorder is None and not parallel.adapters
assert not [name for name in sys.modules if name.startswith("engines.torch.eplb")]
"""


def test_invariant_7_without_a_balancer_nothing_of_it_is_there_and_no_bit_differs(
    tiny_moes: dict[str, Path],
) -> None:
    """A rank that has all experts gives the very bits of transformers' own grouped products."""
    paths = [str(path) for path in tiny_moes.values()]
    root = Path(__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-c", _OFF, *paths],
        cwd=root,
        env={"PYTHONPATH": f"{root}:{root.parent}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_a_balancer_that_has_moved_nothing_changes_no_bit(tiny_moes: dict[str, Path]) -> None:
    for path in tiny_moes.values():
        tokens = some_tokens(2, 6)
        plain = ExpertShard(dispatch="shared", format="plain", slots=EXPERTS)
        off = forward(*load(ALONE, path, plain), tokens)
        assert torch.equal(forward(*load(ALONE, path, shard(slots=EXPERTS)), tokens), off)
