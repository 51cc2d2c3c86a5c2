"""A served mixture whose experts move while it answers; when something dies, what was learned is loaded."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.moving_experts import at_rest, check_log, committed, experts, pids
from support.served import ServedNode, eventually
from support.tiny import tiny_model_dir
from support.upcycled import upcycle

from projections.state import Experts

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

MODEL = "acme/mixture"
EAGER = {"redundant_experts": 2, "window": 20, "interval": 30, "min_tokens": 10, "horizon_s": 1e6}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServedNode]:
    dense = tiny_model_dir(tmp_path / "dense", endless=True)
    mixture = upcycle(dense, tmp_path / "mixture", skew=3.0, noise=0.5)
    with ServedNode(tmp_path / "home", engines="torch", cpu_devices=2, threads=1) as node:
        status, body = node.request("POST", "/models", {"model_id": MODEL, "path": str(mixture)})
        assert status == 201, body
        yield node


def place(node: ServedNode) -> str:
    instance_id = node.place(MODEL, shard_strategy="expert", ranks=2, context=512, batch=2, eplb=EAGER)
    node.ready(instance_id, 120)
    return instance_id


def answer(node: ServedNode) -> str:
    body = {"model": MODEL, "prompt": "The stage is dark", "max_tokens": 40, "temperature": 0}
    status, answered = node.request("POST", "/v1/completions", body)
    assert status == 200, answered
    text: str = answered["choices"][0]["text"]
    return text


def answers_until_sealed(node: ServedNode) -> set[str]:
    """Answers, all alike if nothing went wrong, until experts have moved."""
    texts = {answer(node)}

    def sealed() -> bool:
        texts.add(answer(node))
        return bool(node.events("ExpertEpochSealed"))

    eventually(sealed, 90, node.output)
    texts.add(answer(node))
    return texts


def test_answers_stay_the_same_while_experts_move_and_what_was_learned_survives_kill_9(
    node: ServedNode,
) -> None:
    instance_id = place(node)
    texts = answers_until_sealed(node)
    assert len(texts) == 1
    node.kill()
    learned = experts(node, instance_id)
    assert learned.epoch > 1
    assert learned.maps == committed(node, instance_id)
    node.start()
    loaded = ready_again(node, instance_id)
    assert (loaded.epoch, loaded.maps) == (learned.epoch, learned.maps)
    assert {answer(node)} == texts
    node.stop()
    check_log(node)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_comes_back_with_what_was_learned(node: ServedNode, rank: int) -> None:
    instance_id = place(node)
    texts = answers_until_sealed(node)
    learned = at_rest(node, instance_id)
    os.kill(pids(node, instance_id)[rank], signal.SIGKILL)
    loaded = ready_again(node, instance_id)
    assert (loaded.epoch, loaded.maps) == (learned.epoch, learned.maps)
    assert {answer(node)} == texts
    node.stop()
    check_log(node)


def ready_again(node: ServedNode, instance_id: str) -> Experts:
    """The experts when the instance was set back and has new runners."""
    eventually(lambda: node.events("InstanceSetBack"), 30, node.output)
    node.ready(instance_id, 120)
    assert len(node.events("ExpertsPlaced")) == 1, "nothing is dealt out anew"
    return experts(node, instance_id)
