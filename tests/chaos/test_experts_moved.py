"""A served mixture whose experts move while it answers; when something dies, what was learned is loaded."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.served import ServedNode, eventually
from support.tiny import tiny_model_dir
from support.upcycled import upcycle

from actors.decider import VERSION, decide
from actors.refusal import Rejected
from events.expert_events import ExpertsPlaced, LayerCommitted
from events.reader import LogReader
from projections.invariants import violations
from projections.snapshot import load_state
from projections.state import Experts
from projections.verify import verify

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


def experts(node: ServedNode, instance_id: str) -> Experts:
    with LogReader.open(node.log) as reader:
        return load_state(reader).experts[instance_id]


def answers_until_sealed(node: ServedNode) -> set[str]:
    """Answers, all alike if nothing went wrong, until experts have moved."""
    texts = {answer(node)}

    def sealed() -> bool:
        texts.add(answer(node))
        return bool(node.events("ExpertEpochSealed"))

    eventually(sealed, 90, node.output)
    texts.add(answer(node))
    return texts


def committed(node: ServedNode, instance_id: str) -> list[list[int]]:
    """The maps, from the events alone."""
    maps: list[list[int]] = []
    with LogReader.open(node.log) as reader:
        for recorded in reader.events(subject=instance_id):
            match recorded.event:
                case ExpertsPlaced() as event:
                    maps = [list(layer) for layer in event.maps]
                case LayerCommitted() as event:
                    maps[event.layer] = event.map
                case _:
                    pass
    return maps


def check_log(node: ServedNode) -> None:
    """Every decision comes out the same again, and the state keeps its invariants."""
    with LogReader.open(node.log) as reader:
        report = verify(reader, decide, refusal=Rejected, decider_version=VERSION)
        assert report.ok, report.render()
        assert violations(load_state(reader)) == []


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
    eventually(lambda: at_rest(experts(node, instance_id)), 30, node.output)
    learned = experts(node, instance_id)
    os.kill(_pids(node)[rank], signal.SIGKILL)
    loaded = ready_again(node, instance_id)
    assert (loaded.epoch, loaded.maps) == (learned.epoch, learned.maps)
    assert {answer(node)} == texts
    node.stop()
    check_log(node)


def at_rest(known: Experts) -> bool:
    """Nothing moves, and nothing is about to."""
    return known.migration is None and known.load is None


def ready_again(node: ServedNode, instance_id: str) -> Experts:
    """The experts when the instance was set back and has new runners."""
    eventually(lambda: node.events("InstanceSetBack"), 30, node.output)
    node.ready(instance_id, 120)
    assert len(node.events("ExpertsPlaced")) == 1, "nothing is dealt out anew"
    return experts(node, instance_id)


def _pids(node: ServedNode) -> list[int]:
    with LogReader.open(node.log) as reader:
        state = load_state(reader)
    (instance,) = state.instances.values()
    return [runner.pid for runner in state.instance_runners(instance)]
