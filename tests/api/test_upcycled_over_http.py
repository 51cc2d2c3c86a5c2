"""A mixture upcycled of the real model, served by a node: over HTTP it says what the dense model says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

from support.served import ServedNode
from support.upcycled import upcycle

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(600)]

TYPES = ["mixtral", "glm4_moe"]
EXPERTS = 6
TOKENS = 16
PROMPT = "The capital of France is"
QUESTION = [{"role": "user", "content": "Write one sentence about the sea."}]


class Texts(NamedTuple):
    """What an instance says, greedily."""

    completion: str
    chat: str


class Stage(NamedTuple):
    """A node that has the dense model and both mixtures of it, and what the dense one says."""

    node: ServedNode
    dense: Texts


@pytest.fixture(scope="module")
def stage(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("upcycled")
    models = root / "models"
    for model_type in TYPES:
        upcycle(smollm2, models / model_type, model_type=model_type, experts=EXPERTS)
    (models / "dense").symlink_to(smollm2)
    with ServedNode(
        root / "home", engines="torch", cpu_devices=3, threads=1, models_read_only_dirs=models
    ) as node:
        yield Stage(node, placed(node, "dense", 1)[0])
    shutil.rmtree(models)  # gigabytes


def placed(node: ServedNode, model_id: str, ranks: int, **settings: object) -> tuple[Texts, dict[str, Any]]:
    """What the model says on so many ranks, and its placement. It is removed then.

    In float32: in bfloat16 the order in which ranks sum up may turn a token that was nearly another.
    """
    settings = {"context": 256, "batch": 2, "dtype": "float32", **settings}
    instance_id = node.place(model_id, ranks=ranks, **settings)
    node.ready(instance_id, 300)
    placement: dict[str, Any] = node.get(f"/instance/{instance_id}")["placement"]
    said = texts(node, instance_id)
    assert node.request("DELETE", f"/instance/{instance_id}")[0] == 200
    return said, placement


def texts(node: ServedNode, instance_id: str) -> Texts:
    asked = {"model": instance_id, "max_tokens": TOKENS, "temperature": 0}
    status, completion = node.request("POST", "/v1/completions", asked | {"prompt": PROMPT}, timeout=300)
    assert status == 200, completion
    status, chat = node.request("POST", "/v1/chat/completions", asked | {"messages": QUESTION}, timeout=300)
    assert status == 200, chat
    return Texts(completion["choices"][0]["text"], chat["choices"][0]["message"]["content"])


def test_the_dense_model_talks_sense(stage: Stage) -> None:
    assert "Paris" in stage.dense.completion
    assert "sea" in stage.dense.chat


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_experts_over_ranks_say_what_the_dense_model_says(stage: Stage, model_type: str, ranks: int) -> None:
    said, placement = placed(stage.node, model_type, ranks, shard_strategy="expert")
    assert (placement["engine"], placement["strategy"]) == ("torch", "expert")
    assert len({rank["device_id"] for rank in placement["ranks"]}) == ranks
    assert said == stage.dense


@pytest.mark.parametrize("model_type", TYPES)
def test_one_rank_spreads_nothing_and_says_it_too(stage: Stage, model_type: str) -> None:
    wish = {"model_id": model_type, "placement_settings": {"shard_strategy": "expert", "ranks": 1}}
    status, refused = stage.node.request("POST", "/instance", wish)
    assert (status, refused["error"]["detail"]) == (400, {"rule": "one_rank"})
    assert "One rank has all experts" in refused["error"]["message"]
    said, placement = placed(stage.node, model_type, 1)
    assert (placement["engine"], len(placement["ranks"])) == ("torch", 1)
    assert said == stage.dense


def test_ranks_with_tokens_of_their_own_and_copies_of_experts_say_it_too(stage: Stage) -> None:
    settings = {"expert_dispatch": "all_to_all", "eplb": {"redundant_experts": 2}}
    said, placement = placed(stage.node, "mixtral", 2, shard_strategy="expert", **settings)
    assert placement["expert_dispatch"] == "all_to_all"
    assert said == stage.dense
