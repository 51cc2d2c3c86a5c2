"""What several ranks cost against one, per decode step, on one machine.

Run ``python -m pytest tests/benchmarks/bench_ranks.py -m benchmark -s``. The tiny model computes next to
nothing, so that what is left of a step is the lockstep and the ring; all ranks share this machine's cores.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from pathlib import Path

import pytest
from support.rank_group import RankGroup
from support.runner_client import RunnerClient
from support.served import free_port
from support.tiny import tiny_model_dir

from engines.contract import GroupSpec, Strategy
from engines.link import Link, Step, meet
from engines.wire import Generate, TaskDone
from events.values import Sampling

TOKENS, ROUNDS, LAYERS = 200, 5, 6


@pytest.mark.benchmark
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "world"), [("pipeline", 2), ("pipeline", 3), ("tensor", 2)])
def test_step_over_ranks_against_one(tmp_path: Path, strategy: Strategy, world: int) -> None:
    model = tiny_model_dir(tmp_path / "model", layers=LAYERS, endless=True)
    with RunnerClient() as alone, RankGroup(world) as group:
        alone.ready(model)
        group.ready(model, strategy)
        for streams in (1, 4):
            compare(f"{strategy} {world}", alone, group.lead, streams)


def compare(name: str, alone: RunnerClient, lead: RunnerClient, streams: int) -> None:
    for runner in (alone, lead):
        step_us(runner, streams)
    pairs = [(step_us(lead, streams), step_us(alone, streams)) for _ in range(ROUNDS)]
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{name}, {streams} streams: {mine:,.0f} us a step, one rank {theirs:,.0f} us, "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def step_us(runner: RunnerClient, streams: int) -> float:
    sampling = Sampling(max_tokens=TOKENS, temperature=0.0, top_p=1.0, seed=0)
    tasks = [f"task-{len(runner.tasks) + n}" for n in range(streams)]
    began = time.perf_counter()
    for task in tasks:
        runner.send(Generate(task_id=task, kind="completion", sampling=sampling, tokens=list(range(8))))
    ends = [runner.outcome(task).end for task in tasks]
    assert all(isinstance(end, TaskDone) for end in ends)
    return (time.perf_counter() - began) / TOKENS * 1e6


@pytest.mark.benchmark
@pytest.mark.slow
def test_a_word_of_rank_0_against_a_bare_socket() -> None:
    """There and back, so that both sides of the link wake; two links in one process, so two threads each."""
    spec = {
        "group_id": "g",
        "hosts": [f"127.0.0.1:{free_port()}"] * 2,
        "strategy": "tensor",
        "timeout_s": 10.0,
    }
    found: dict[int, Link] = {}

    def join(rank: int) -> None:
        (found[rank],) = meet(GroupSpec(rank=rank, **spec), lambda cause: None)  # type: ignore[arg-type]

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rounds = 2000
    pairs = [(links_us(found[0], found[1], rounds), socket_us(rounds)) for _ in range(ROUNDS)]
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    send = send_us(found[0], found[1])
    print(
        f"a word there and back: {mine:.0f} us, bytes on a bare socket {theirs:.0f} us, "
        f"ratio {mine / theirs:.1f}; what rank 0 spends on it: {send:.1f} us"
    )


def links_us(lead: Link, follower: Link, rounds: int) -> float:
    def echo() -> None:
        for _ in range(rounds):
            follower.send(follower.take())

    thread = threading.Thread(target=echo)
    thread.start()
    began = time.perf_counter()
    for _ in range(rounds):
        lead.send(Step())
        lead.take()
    thread.join()
    return (time.perf_counter() - began) / rounds * 1e6


def socket_us(rounds: int) -> float:
    ours, theirs = socket.socketpair()

    def echo() -> None:
        for _ in range(rounds):
            theirs.sendall(theirs.recv(16))

    thread = threading.Thread(target=echo)
    thread.start()
    began = time.perf_counter()
    for _ in range(rounds):
        ours.sendall(b"0123456789")
        ours.recv(16)
    thread.join()
    ours.close()
    theirs.close()
    return (time.perf_counter() - began) / rounds * 1e6


def send_us(lead: Link, follower: Link) -> float:
    spent = 0.0
    for _ in range(1000):
        began = time.perf_counter()
        lead.send(Step())
        spent += time.perf_counter() - began
        follower.take()
    return spent * 1e3
