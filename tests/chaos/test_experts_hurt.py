"""Ranks, the node and the controller are hurt while experts move under load: no wrong token, nobody hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

pytest.importorskip("torch")

from pykka import ActorRegistry
from support.moving_experts import (
    MIXTURE,
    RESTLESS,
    SPREAD,
    Struck,
    Traffic,
    at_rest,
    check_log,
    check_moves,
    experts,
    happened,
    in_mid_migration,
    pids,
    restless_mixture,
    truth,
)
from support.node import local_node
from support.served import ServedNode

from actors.eplb.controller import Controller

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

EAGER = {**RESTLESS, "policy": "greedy"}
"""Greedy moves nearly all experts each time, in many layers: there is time to strike."""


class Stage(NamedTuple):
    """A node with an instance of the mixture, and what that should say."""

    node: ServedNode
    models: Path
    instance_id: str
    truth: dict[str, str]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("hurt")
    models = restless_mixture(root)
    with ServedNode(
        root / "home",
        engines="torch",
        cpu_devices=2,
        threads=1,
        models_read_only_dirs=models,
        prefill_timeout_s=8,
        decode_timeout_s=8,
    ) as node:
        said = truth(node)
        hasty = EAGER | {"stage_timeout_s": 15, "apply_timeout_s": 15}
        yield Stage(node, models, node.place(MIXTURE, ranks=2, eplb=hasty, **SPREAD), said)
        node.stop()
        check_log(node)


@pytest.fixture
def stage(started: Stage) -> Stage:
    started.node.ready(started.instance_id, 120)
    return started


def recovered(stage: Stage, struck: Struck, traffic: Traffic) -> None:
    """The migration was given up, the instance is ready again, with what was learned, and goes on."""
    node, instance_id = stage.node, stage.instance_id
    assert struck.end(node) == "aborted", "it was over before the blow"
    happened(node.url, instance_id, "InstanceReady", after=struck.before, timeout=120)
    check_moves(node, instance_id, traffic)
    assert len(node.events("ExpertsPlaced")) == 1, "experts were dealt out anew"


@pytest.mark.parametrize(
    ("blow", "rank", "at"),
    [
        (signal.SIGKILL, 0, "applying"),
        (signal.SIGKILL, 1, "staging"),
        (signal.SIGSTOP, 0, "staging"),
        (signal.SIGSTOP, 1, "applying"),
    ],
)
def test_a_rank_is_hurt_in_mid_migration(stage: Stage, blow: signal.Signals, rank: int, at: str) -> None:
    node, instance_id = stage.node, stage.instance_id
    victims = pids(node, instance_id)
    with Traffic(node.url, instance_id, stage.truth) as traffic:
        struck = in_mid_migration(node, instance_id, at, layers=4)
        os.kill(victims[rank], blow)
        recovered(stage, struck, traffic)
    assert traffic.errors
    assert not any(psutil.pid_exists(pid) for pid in victims), "a runner was left behind"
    at_rest(node, instance_id)


def test_the_node_is_killed_in_mid_migration(stage: Stage) -> None:
    node, instance_id = stage.node, stage.instance_id
    with Traffic(node.url, instance_id, stage.truth) as traffic:
        struck = in_mid_migration(node, instance_id, "applying", layers=4)
        node.kill()
        learned = experts(node, instance_id)
        node.start()
        recovered(stage, struck, traffic)
    assert traffic.cut
    (aborted,) = [e["event"] for e in node.events("MigrationAborted") if struck.is_of(e["event"])]
    assert "ended without a word" in aborted["cause"]["message"]
    assert at_rest(node, instance_id).epoch > learned.epoch


def test_the_controller_crashes_in_mid_migration(started: Stage, tmp_path: Path) -> None:
    """In a node of this process: from outside there is no way to crash an actor."""
    settings = {"engines": "torch", "cpu_devices": 2, "threads": 1}
    with local_node(tmp_path / "home", models_read_only_dirs=str(started.models), **settings) as local:
        node = ServedNode(tmp_path / "home")
        node.port, node.url = local.port, local.url
        instance_id = local.place(MIXTURE, ranks=2, eplb=EAGER, **SPREAD)
        with Traffic(node.url, instance_id, started.truth) as traffic:
            for _ in range(3):
                struck = in_mid_migration(node, instance_id, "applying", layers=4)
                (controller,) = ActorRegistry.get_by_class(Controller)
                controller.tell("what no controller takes")
                assert struck.end(node) == "sealed"
                assert not controller.is_alive()
            check_moves(node, instance_id, traffic)
        assert not traffic.errors
        assert not traffic.cut
        at_rest(node, instance_id)
    check_log(node)
