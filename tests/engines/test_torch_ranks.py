"""A model whose experts are spread over torch ranks: the same answers as on one, wherever its experts are."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.expert_moves import Mover, balanced_shard, random_map
from support.rank_group import RankGroup, failed
from support.runner_client import RunnerClient
from support.tiny import tiny_model_dir
from support.torch_ranks import load_spec, run
from support.upcycled import TOP_K, upcycle

from engines.contract import ExpertShard
from engines.experts.maps import initial
from engines.wire import Connect, LayerStaged, StageLayer, TaskDone, TaskDropped, WarmUp
from events.experts import LayerMoves
from events.values import Sampling

LAYERS, EXPERTS = 3, 6
TEXTS = ["stand by", "the sea is wide " * 12, "go", "every light and every sound", "cue twelve", "bell " * 9]
DRAWN = [Sampling(max_tokens=60, temperature=1.3, top_p=0.95, seed=seed) for seed in range(6)]
LONG = Sampling(max_tokens=40, temperature=0.0, top_p=1.0, seed=0)
SCORED = Sampling(max_tokens=12, temperature=0.0, top_p=1.0, seed=0, logprobs=3)
PLAIN = ExpertShard(dispatch="shared", format="plain", slots=EXPERTS)
GROUPS = {
    "2 shared plain": (2, balanced_shard(LAYERS, EXPERTS, 2, redundant=2, window=10, interval=20)),
    "3 all_to_all plain": (
        3,
        balanced_shard(LAYERS, EXPERTS, 3, redundant=6, dispatch="all_to_all", window=10, interval=20),
    ),
}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("dense"), layers=LAYERS)


@pytest.fixture(scope="module")
def model(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts that differ: a token at the wrong one shows."""
    return upcycle(dense, tmp_path_factory.mktemp("noisy"), experts=EXPERTS, noise=0.5)


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[RunnerClient]:
    with RunnerClient(engine_name="torch") as runner:
        yield runner.ready(model)


@pytest.fixture(
    scope="module",
    params=["2 shared plain", pytest.param("3 all_to_all plain", marks=pytest.mark.slow)],
)
def group(request: pytest.FixtureRequest, model: Path) -> Iterator[tuple[RankGroup, Mover]]:
    world, shard = GROUPS[request.param]
    with RankGroup(world, "torch") as ranks:
        ranks.ready(model, "expert", experts=shard)
        yield ranks, Mover(ranks.lead, shard)


_asked = 0


def ask(runner: RunnerClient, text: str, sampling: Sampling) -> str:
    global _asked
    _asked += 1
    runner.chat(f"task-{_asked}", text, sampling)
    return f"task-{_asked}"


def answers(runner: RunnerClient, asked: list[tuple[str, Sampling]], *, at_once: bool) -> list[tuple]:
    if at_once:
        outcomes = [runner.outcome(task) for task in [ask(runner, *one) for one in asked]]
    else:
        outcomes = [runner.outcome(ask(runner, *one)) for one in asked]
    assert all(isinstance(outcome.end, TaskDone) for outcome in outcomes), outcomes
    return [(o.tokens, o.text, o.end.finish_reason, o.end.usage) for o in outcomes]


def scores(runner: RunnerClient) -> list[tuple]:
    """Tokens with log probabilities, to the last bit."""
    outcomes = [runner.outcome(ask(runner, text, SCORED)) for text in TEXTS[:3]]
    return [(e.token, e.logprob, *e.top) for outcome in outcomes for e in outcome.logprobs]


def test_answers_are_those_of_one_rank(group: tuple[RankGroup, Mover], alone: RunnerClient) -> None:
    asked = [(text, LONG) for text in TEXTS]
    lead = group[0].lead
    expected = answers(alone, asked, at_once=False)
    assert answers(lead, asked, at_once=False) == expected
    assert answers(lead, asked, at_once=True) == expected  # more than the batch holds
    drawn = list(zip(TEXTS, DRAWN, strict=True))
    assert answers(lead, drawn, at_once=True) == answers(alone, drawn, at_once=True)


def test_logprobs_are_those_of_one_rank(group: tuple[RankGroup, Mover], alone: RunnerClient) -> None:
    mine, theirs = scores(group[0].lead), scores(alone)
    assert [entry[0] for entry in mine] == [entry[0] for entry in theirs]
    assert [entry[1] for entry in mine] == pytest.approx([entry[1] for entry in theirs], abs=1e-4)


def test_cancelling_one_leaves_the_others(group: tuple[RankGroup, Mover], alone: RunnerClient) -> None:
    lead = group[0].lead
    endless = Sampling(max_tokens=300, temperature=0.0, top_p=1.0, seed=0)
    expected = answers(alone, [(TEXTS[0], endless)], at_once=False)[0]
    kept, *dropped = [ask(lead, text, endless) for text in (TEXTS[0], TEXTS[1], TEXTS[3], TEXTS[4])]
    for task in dropped:
        lead.cancel(task)
    assert any(isinstance(end, TaskDropped) for end in [lead.outcome(task).end for task in dropped])
    outcome = lead.outcome(kept)
    assert (outcome.tokens, outcome.text) == expected[:2]


def test_answers_stay_the_same_wherever_experts_go(
    group: tuple[RankGroup, Mover], alone: RunnerClient
) -> None:
    ranks, mover = group
    chance = random.Random(5)
    asked = [(text, LONG) for text in TEXTS]
    expected, reference = answers(alone, asked, at_once=False), scores(alone)
    for n in range(6):  # between two steps of running answers, and idle
        tasks = [ask(ranks.lead, *one) for one in asked] if n % 2 else []
        old = mover.maps[n % LAYERS]
        new = random_map(chance, EXPERTS, len(old), len(ranks.ranks))
        staged, applied = mover.migrate(n % LAYERS, new)
        assert [slot.slot for slot in staged.slots] == [p for p in range(len(old)) if old[p] != new[p]]
        assert applied.seconds < 5
        found = [ranks.lead.outcome(task) for task in tasks]
        assert [(o.tokens, o.text) for o in found] == [one[:2] for one in expected[: len(found)]]
    mine = scores(ranks.lead)
    assert [entry[1] for entry in mine] == pytest.approx([entry[1] for entry in reference], abs=1e-4)


def test_moves_that_do_not_fit_are_refused_and_change_nothing(group: tuple[RankGroup, Mover]) -> None:
    ranks, mover = group
    before = [entry[0] for entry in scores(ranks.lead)]
    ranks.lead.channel.send(StageLayer(migration_id="odd", moves=LayerMoves(0, [0] * 8, [])))
    refused = mover.answer(LayerStaged, "odd")
    assert refused.cause is not None
    assert refused.cause.code == "stage_failed"
    mover.drop("odd")
    assert [entry[0] for entry in scores(ranks.lead)] == before


def test_windows_count_every_row_once(group: tuple[RankGroup, Mover]) -> None:
    ranks, mover = group
    seen = len(mover.windows())
    ranks.lead.outcome(ask(ranks.lead, TEXTS[0], LONG))
    window = mover.window_after(seen)
    assert (window.steps, window.epoch) == (10, mover.epoch)
    assert [sum(layer) for layer in window.counts] == [window.tokens * TOP_K] * LAYERS
    assert [len(layer) for layer in window.counts] == [len(mover.maps[0])] * LAYERS
    assert 0 < window.seconds < 10
    assert window.bandwidth > 1e6


def _imports(group: object, pipe: object, path: str, shard: ExpertShard) -> list[str]:
    from engines.torch.expert_builder import ExpertBuilder

    builder = ExpertBuilder(load_spec(Path(path), experts=shard), group)  # type: ignore[arg-type]
    builder.load(lambda done, total: None)
    builder.warm_up()
    return sorted(name for name in sys.modules if "eplb" in name)


@pytest.mark.slow
def test_without_a_balancer_nothing_of_it_is_imported(model: Path) -> None:
    assert run(2, _imports, str(model), PLAIN) == [[], []]


def test_a_balancer_changes_no_bit_nor_does_what_is_staged_and_dropped(model: Path) -> None:
    """Without redundant slots: a copy of an expert on another rank is summed up in another order."""
    with RankGroup(2, "torch") as ranks:
        plain = ExpertShard(dispatch="all_to_all", format="plain", slots=EXPERTS)
        without = scores(ranks.ready(model, "expert", experts=plain).lead)
    shard = balanced_shard(LAYERS, EXPERTS, 2, redundant=0, dispatch="all_to_all", window=10, interval=20)
    with RankGroup(2, "torch") as ranks:
        lead = ranks.ready(model, "expert", experts=shard).lead
        mover = Mover(lead, shard)
        assert scores(lead) == without
        new = list(reversed(range(EXPERTS)))
        staged = mover.stage(1, new)
        assert scores(lead) == without
        mover.drop(staged.migration_id)
        assert scores(lead) == without
        again = mover.stage(1, new)  # the staging buffers are free again
        assert again.slots == staged.slots


def test_the_first_placement_is_the_one_that_the_log_names(model: Path, alone: RunnerClient) -> None:
    shard = balanced_shard(LAYERS, EXPERTS, 2, redundant=2)
    maps = [random_map(random.Random(layer), EXPERTS, 8, 2) for layer in range(LAYERS)]
    shard = ExpertShard(dispatch="shared", format="plain", slots=8, eplb=shard.eplb, epoch=7, maps=maps)
    asked = [(text, LONG) for text in TEXTS[:3]]
    with RankGroup(2, "torch") as ranks:
        ranks.ready(model, "expert", experts=shard)
        assert answers(ranks.lead, asked, at_once=True) == answers(alone, asked, at_once=False)
        mover = Mover(ranks.lead, shard)
        _, applied = mover.migrate(0, initial(EXPERTS, 8, 2))
        assert len(applied.digests) == 2


@pytest.mark.parametrize("model_type", ["mixtral", pytest.param("glm4_moe", marks=pytest.mark.slow)])
def test_copies_of_a_dense_feed_forward_say_what_it_says(
    dense: Path, tmp_path: Path, model_type: str
) -> None:
    asked = [(text, LONG) for text in TEXTS]
    with RunnerClient(engine_name="torch") as alone:
        expected = answers(alone.ready(dense), asked, at_once=False)
    made = upcycle(dense, tmp_path / model_type, model_type=model_type, experts=EXPERTS)
    with RankGroup(2, "torch") as ranks:
        ranks.ready(made, "expert", experts=PLAIN)
        assert answers(ranks.lead, asked, at_once=True) == expected


def test_other_strategies_are_refused_with_a_sentence() -> None:
    with RankGroup(2, "torch") as ranks:
        spec = ranks.specs("tensor")[1]
        ranks.others[0].channel.send(Connect(engine="torch", group=spec))
        cause = failed(ranks.others[0]).cause
        assert cause.code == "strategy_unsupported"
        assert "place it with the strategy 'expert'" in cause.message


@pytest.mark.slow
def test_ranks_that_were_told_otherwise_are_found_out(model: Path) -> None:
    with RankGroup(2, "torch") as ranks:
        ranks.connect("expert")
        for rank, dispatch in zip(ranks.ranks, ("shared", "all_to_all"), strict=True):
            only = object.__new__(RankGroup)
            only.ranks = [rank]
            only.load(model, "expert", experts=ExpertShard(dispatch=dispatch, format="plain", slots=EXPERTS))
        for rank in reversed(ranks.ranks):
            rank.channel.send(WarmUp())
        assert failed(ranks.lead, timeout=60).cause.code == "wrong_experts"


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("model_type", ["mixtral", "glm4_moe"])
def test_upcycled_smollm2_says_what_the_dense_one_says(
    smollm2: Path, tmp_path: Path, model_type: str, world: int
) -> None:
    asked = [
        (text, Sampling(max_tokens=16, temperature=0.0, top_p=1.0, seed=0))
        for text in ("Write one sentence about the sea.", "What is 2 + 2?", "Name three colours.")
    ]
    with RunnerClient(engine_name="torch") as alone:
        expected = answers(alone.ready(smollm2), asked, at_once=False)
    made = upcycle(smollm2, tmp_path / model_type, model_type=model_type, experts=3)
    with RunnerClient(engine_name="torch") as alone:
        assert answers(alone.ready(made), asked, at_once=True) == expected
    layers = 30 if model_type == "mixtral" else 29
    shard = balanced_shard(layers, 3, world, redundant=3, window=5, interval=10)
    with RankGroup(world, "torch") as ranks:
        lead = ranks.ready(made, "expert", experts=shard).lead
        assert answers(lead, asked, at_once=True) == expected
        mover = Mover(lead, shard)
        for layer in (0, layers - 1):
            mover.migrate(layer, random_map(random.Random(layer), 3, 6, world))
        assert answers(lead, asked, at_once=True) == expected
