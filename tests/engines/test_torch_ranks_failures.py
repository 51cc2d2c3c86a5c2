"""Torch groups that break, also while experts move: nobody hangs, all say why, and no token is wrong."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.expert_moves import Mover, balanced_shard
from support.rank_group import RankGroup, failed
from support.runner_client import RunnerClient
from support.tiny import tiny_model_dir
from support.upcycled import upcycle

from engines.runner import FAILED, ORPHANED
from engines.wire import Connect, Stop
from events import status
from events.values import Sampling

LAYERS, EXPERTS = 2, 4
ENDLESS = Sampling(max_tokens=900, temperature=0.0, top_p=1.0, seed=0)
DEADLINE_S = 2.0
SHARD = balanced_shard(
    LAYERS, EXPERTS, 2, redundant=0, stage_timeout_s=DEADLINE_S, apply_timeout_s=DEADLINE_S
)
TURNED = [3, 2, 1, 0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dense = tiny_model_dir(tmp_path_factory.mktemp("dense"), layers=LAYERS, endless=True)
    return upcycle(dense, tmp_path_factory.mktemp("noisy"), experts=EXPERTS, noise=0.5)


@pytest.fixture(scope="module")
def truth(model: Path) -> list[int]:
    """The answer of one rank, from its beginning."""
    with RunnerClient(engine_name="torch") as alone:
        alone.ready(model).chat("truth", "stand by", ENDLESS)
        return alone.outcome("truth", 120).tokens


@pytest.fixture
def pair(model: Path) -> Iterator[RankGroup]:
    with RankGroup(2, "torch") as group:
        yield group.ready(model, "expert", experts=SHARD)


def stream(group: RankGroup) -> None:
    group.lead.chat("stream", "stand by", ENDLESS)
    group.lead.wait(lambda: group.lead.tasks["stream"].steps > 3)


def stop(group: RankGroup, rank: int) -> None:
    group.ranks[rank].process.send_signal(signal.SIGSTOP)


def reach(group: RankGroup, at: str) -> None:
    """Take a group whose rank 1 does not answer into a stage of a migration; nothing is committed before."""
    mover = Mover(group.lead, SHARD)
    if at == "staging":
        stop(group, 1)
        mover.order_stage(0, TURNED)
        return
    staged = mover.stage(0, TURNED)
    assert staged.cause is None
    stop(group, 1)
    if at == "applying":
        mover.order_apply(staged.migration_id, 0, TURNED)


def shown(group: RankGroup, truth: list[int]) -> None:
    """What clients have seen is the beginning of the right answer."""
    tokens = group.lead.tasks["stream"].tokens
    assert tokens == truth[: len(tokens)]
    assert tokens


@pytest.mark.parametrize(
    ("at", "killed"),
    [
        ("staging", 1),
        pytest.param("staged", 1, marks=pytest.mark.slow),
        ("applying", 1),
        pytest.param("staging", 0, marks=pytest.mark.slow),
        pytest.param("staged", 0, marks=pytest.mark.slow),
        pytest.param("applying", 0, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_killed_in_a_migration_ends_the_group(
    pair: RankGroup, truth: list[int], at: str, killed: int
) -> None:
    stream(pair)
    reach(pair, at)
    time.sleep(0.2)
    pair.ranks[killed].process.kill()
    pair.ranks[1].process.send_signal(signal.SIGCONT)
    found = failed(pair.ranks[1 - killed])
    assert found.cause.code == "ring_broken"
    assert pair.ranks[1 - killed].process.wait(20) == FAILED
    shown(pair, truth)


@pytest.mark.parametrize("at", ["staging", "applying"])
def test_a_rank_that_hangs_in_a_migration_is_not_waited_for_beyond_the_deadline(
    pair: RankGroup, at: str
) -> None:
    """Where nothing is being computed: a collective of an answer has the supervisor's deadline."""
    reach(pair, at)
    began = time.monotonic()
    found = failed(pair.lead, timeout=DEADLINE_S + 60)
    assert time.monotonic() - began < DEADLINE_S + 30
    assert "hangs" in found.cause.message
    assert pair.lead.process.wait(20) == FAILED
    pair.ranks[1].process.send_signal(signal.SIGCONT)
    assert failed(pair.ranks[1]).cause.code == "ring_broken"


@pytest.mark.parametrize("busy", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["busy", "idle"])
@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_ranks_end_when_one_is_killed(pair: RankGroup, truth: list[int], killed: int, busy: bool) -> None:
    if busy:
        stream(pair)
    pair.ranks[killed].process.kill()
    found = failed(pair.ranks[1 - killed])
    assert found.cause.code == "ring_broken"
    assert pair.ranks[1 - killed].process.wait(20) == FAILED
    if busy:
        shown(pair, truth)


def test_a_lost_supervisor_ends_a_rank_inside_a_collective(pair: RankGroup) -> None:
    stream(pair)
    stop(pair, 1)
    time.sleep(0.5)
    steps = pair.lead.tasks["stream"].steps
    time.sleep(0.3)
    assert pair.lead.tasks["stream"].steps == steps  # it waits for the stopped rank
    pair.lead.channel.close()
    assert pair.lead.process.wait(20) == ORPHANED
    pair.ranks[1].process.send_signal(signal.SIGCONT)
    assert failed(pair.ranks[1]).cause.code == "ring_broken"


def test_a_rank_is_stopped_inside_a_collective(pair: RankGroup) -> None:
    stream(pair)
    stop(pair, 1)
    time.sleep(0.3)
    pair.lead.channel.send(Stop())
    assert pair.lead.process.wait(20) == 0
    assert isinstance(pair.lead.statuses[-1], status.Shutdown)


@pytest.mark.parametrize("order", [(0, 1), pytest.param((1, 0), marks=pytest.mark.slow)], ids=str)
def test_a_group_is_stopped_rank_by_rank(pair: RankGroup, order: tuple[int, ...]) -> None:
    stream(pair)
    for rank in order:
        pair.ranks[rank].channel.send(Stop())
        time.sleep(0.1)
    assert [rank.process.wait(20) for rank in pair.ranks] == [0, 0]
    assert all(isinstance(rank.statuses[-1], status.Shutdown) for rank in pair.ranks)


def test_a_port_that_is_taken_fails_the_connect() -> None:
    with RankGroup(2, "torch") as group, socket.socket() as other:
        specs = group.specs("expert", timeout_s=5.0)
        other.bind(("127.0.0.1", int(specs[0].hosts[0].split(":")[1])))
        other.listen()
        for rank, spec in zip(group.ranks, specs, strict=True):
            rank.channel.send(Connect(engine="torch", group=spec))
        assert failed(group.lead, timeout=30).cause.code == "ring_unreachable"
        assert failed(group.ranks[1], timeout=30).phase == "Connecting"


def test_an_address_that_is_not_this_machine_s_is_named() -> None:
    with RankGroup(2, "torch") as group:
        spec = group.specs("expert", hosts=["192.0.2.77:4000", "192.0.2.78:4000"])[1]
        group.ranks[1].channel.send(Connect(engine="torch", group=spec))
        cause = failed(group.ranks[1], timeout=30).cause
        assert cause.code == "ring_unreachable"
        assert "192.0.2.78" in cause.message
