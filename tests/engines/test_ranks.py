"""Inference over several ranks: the same answers as on one, whatever is asked at once, and no spinning."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.rank_group import RankGroup
from support.runner_client import GREEDY, RunnerClient
from support.tiny import tiny_model_dir

from engines.contract import Strategy
from engines.wire import Generate, TaskBroken, TaskDone, TaskDropped
from events.values import Sampling

LAYERS = 5
PATIENCE_S = 300.0
"""Three ranks that spin in collectives on two cores take their time."""
TEXTS = ["stand by", "the sea is wide " * 30, "go", "every light and every sound", "cue twelve", "bell " * 9]
DRAWN = [Sampling(max_tokens=150, temperature=1.3, top_p=0.95, seed=seed) for seed in range(6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama whose answers may end: by itself mlx-lm has no pipeline for it."""
    return tiny_model_dir(tmp_path_factory.mktemp("llama"), layers=LAYERS)


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[RunnerClient]:
    with RunnerClient() as runner:
        yield runner.ready(model)


@pytest.fixture(scope="module", params=[("pipeline", 2), ("pipeline", 3), ("tensor", 2)], ids=str)
def group(request: pytest.FixtureRequest, model: Path) -> Iterator[RankGroup]:
    strategy, world = request.param
    with RankGroup(world) as ranks:
        yield ranks.ready(model, strategy)


_asked = 0


def ask(runner: RunnerClient, text: str, sampling: Sampling) -> str:
    global _asked
    _asked += 1
    runner.chat(f"task-{_asked}", text, sampling)
    return f"task-{_asked}"


def answers(runner: RunnerClient, asked: list[tuple[str, Sampling]], *, at_once: bool) -> list[tuple]:
    if at_once:
        outcomes = [runner.outcome(task, PATIENCE_S) for task in [ask(runner, *one) for one in asked]]
    else:
        outcomes = [runner.outcome(ask(runner, *one), PATIENCE_S) for one in asked]
    assert all(isinstance(outcome.end, TaskDone) for outcome in outcomes), outcomes
    return [(o.tokens, o.text, o.end.finish_reason, o.end.usage) for o in outcomes]


def test_greedy_tokens_are_those_of_one_rank(group: RankGroup, alone: RunnerClient) -> None:
    asked = [(text, Sampling(max_tokens=40, temperature=0.0, top_p=1.0, seed=0)) for text in TEXTS]
    expected = answers(alone, asked, at_once=False)
    assert answers(group.lead, asked, at_once=False) == expected
    assert answers(group.lead, asked, at_once=True) == expected  # more than the batch holds


def test_seeds_draw_what_they_draw_on_one_rank(group: RankGroup, alone: RunnerClient) -> None:
    asked = list(zip(TEXTS, DRAWN, strict=True))
    expected = answers(alone, asked, at_once=False)
    assert {finish for _, _, finish, _ in expected} == {"stop", "length"}  # some end by a token, some don't
    assert answers(group.lead, asked, at_once=True) == expected


def test_stop_strings_end_one_of_several(group: RankGroup, alone: RunnerClient) -> None:
    text = answers(alone, [(TEXTS[0], GREEDY)], at_once=False)[0][1]
    stopped = Sampling(max_tokens=40, temperature=0.0, top_p=1.0, seed=0, stop=[text[4:8]])
    asked = [(TEXTS[0], stopped), (TEXTS[2], DRAWN[0]), (TEXTS[3], DRAWN[1])]
    expected = answers(alone, asked, at_once=False)
    assert expected[0][1] == text[:4]
    assert answers(group.lead, asked, at_once=True) == expected


def test_logprobs_are_those_of_one_rank(group: RankGroup, alone: RunnerClient) -> None:
    wanted = Sampling(max_tokens=10, temperature=0.0, top_p=1.0, seed=0, logprobs=3)
    mine, theirs = (runner.outcome(ask(runner, TEXTS[3], wanted)).logprobs for runner in (group.lead, alone))
    assert [entry.token for entry in mine] == [entry.token for entry in theirs]
    assert [entry.logprob for entry in mine] == pytest.approx([entry.logprob for entry in theirs], abs=1e-4)
    assert [len(entry.top) for entry in mine] == [3] * 10


def test_cancelling_one_leaves_the_others(group: RankGroup, alone: RunnerClient) -> None:
    long = Sampling(max_tokens=300, temperature=0.0, top_p=1.0, seed=0)
    expected = answers(alone, [(TEXTS[0], long)], at_once=False)[0]
    kept, *dropped = [ask(group.lead, text, long) for text in (TEXTS[0], TEXTS[1], TEXTS[3], TEXTS[4])]
    for task in dropped:
        group.lead.cancel(task)
    ends = [group.lead.outcome(task).end for task in dropped]
    assert any(isinstance(end, TaskDropped) for end in ends)
    outcome = group.lead.outcome(kept)
    assert (outcome.tokens, outcome.text) == expected[:2]


def test_an_idle_group_sleeps(group: RankGroup) -> None:
    group.lead.outcome(ask(group.lead, TEXTS[0], GREEDY))
    time.sleep(0.2)
    processes = [psutil.Process(rank.process.pid) for rank in group.ranks]
    before = [sum(process.cpu_times()[:2]) for process in processes]
    time.sleep(1.0)
    used = [sum(p.cpu_times()[:2]) - b for p, b in zip(processes, before, strict=True)]
    assert max(used) < 0.1, used


def test_only_rank_0_takes_tasks(group: RankGroup) -> None:
    follower = group.others[-1]
    follower.send(Generate(task_id="astray", kind="completion", sampling=GREEDY, text="go"))
    end = follower.outcome("astray").end
    assert isinstance(end, TaskBroken)
    assert end.cause.code == "not_rank_0"


@pytest.mark.parametrize("tied", [False, True])
def test_mlx_lms_own_pipeline_gives_the_same_tokens(tmp_path: Path, tied: bool) -> None:
    model = tiny_model_dir(tmp_path / "qwen2", layers=LAYERS, model_type="qwen2", tied=tied)
    _compare(model, "pipeline", [(0, 1), (1, 4), (4, 5)])


@pytest.mark.parametrize(
    ("strategy", "shards"), [("pipeline", [(0, 4), (4, 5)]), ("tensor", [(0, LAYERS)] * 2)], ids=str
)
def test_tied_embeddings_and_uneven_layers(
    tmp_path: Path, strategy: Strategy, shards: list[tuple[int, int]]
) -> None:
    model = tiny_model_dir(tmp_path / "tied", layers=LAYERS, tied=True)
    _compare(model, strategy, shards)


def _compare(model: Path, strategy: Strategy, shards: list[tuple[int, int]]) -> None:
    asked = list(zip(TEXTS, DRAWN, strict=True))
    with RunnerClient() as alone:
        expected = answers(alone.ready(model), asked, at_once=False)
    with RankGroup(len(shards)) as group:
        assert answers(group.ready(model, strategy, shards).lead, asked, at_once=True) == expected


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("strategy", "world"), [("pipeline", 2), ("pipeline", 3), ("tensor", 3)])
def test_smollm2_says_the_same(smollm2: Path, strategy: Strategy, world: int) -> None:
    asked = [
        (text, Sampling(max_tokens=24, temperature=0.0, top_p=1.0, seed=0))
        for text in ("Write one sentence about the sea.", "What is 2 + 2?", "Name three colours.")
    ]
    with RunnerClient() as alone:
        expected = answers(alone.ready(smollm2), asked, at_once=False)
    with RankGroup(world) as group:
        group.ready(smollm2, strategy)
        assert answers(group.lead, asked, at_once=True) == expected
