"""Experts through HTTP: what is refused before anything is served, and in which form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.node import MODEL, LocalNode

MIXTURE = "acme/mixture"
CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "intermediate_size": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": 8,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def mixture(node: LocalNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A known model with experts. No engine of the node can spread them."""
    path: Path = tmp_path_factory.mktemp("mixture")
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"model.embed_tokens.weight": np.zeros((64, 8), np.float32)}, path / "model.safetensors")
    taken = node.call("POST", "/models", {"model_id": MIXTURE, "path": str(path)})
    assert taken.status == 201, taken.body
    yield MIXTURE
    node.call("DELETE", f"/models/{quote(MIXTURE, safe='')}")


def place(node: LocalNode, model_id: str, **settings: Any) -> Any:
    return node.call("POST", "/instance", {"model_id": model_id, "placement_settings": settings})


@pytest.mark.parametrize(
    ("settings", "param", "words"),
    [
        (
            {"shard_strategy": "expert", "eplb": {"redundant": 2}},
            "placement_settings.eplb",
            ["unknown field `redundant`", "known are redundant_experts, window, interval, phase, policy"],
        ),
        (
            {"elpb": {}},
            "placement_settings",
            ["unknown field `elpb`", "expert_dispatch, expert_format, eplb"],
        ),
        ({"eplb": {"policy": "swift"}}, "placement_settings.eplb.policy", ["Invalid enum value 'swift'"]),
        ({"eplb": {"phase": "idle"}}, "placement_settings.eplb.phase", ["Invalid enum value 'idle'"]),
        ({"eplb": {"window": "100"}}, "placement_settings.eplb.window", ["Expected `int`, got `str`"]),
        ({"eplb": {"communicator": "mpi"}}, "placement_settings.eplb.communicator", ["'mpi'"]),
        ({"eplb": [2]}, "placement_settings.eplb", ["Expected `object | null`"]),
        ({"expert_format": "int4"}, "placement_settings.expert_format", ["'int4'"]),
        ({"expert_dispatch": "broadcast"}, "placement_settings.expert_dispatch", ["'broadcast'"]),
    ],
)
def test_settings_that_are_none_name_their_place(
    node: LocalNode, mixture: str, settings: dict[str, Any], param: str, words: list[str]
) -> None:
    refused = place(node, mixture, **settings)
    assert refused.status == 400, refused.body
    error = refused.json["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_type", param)
    for word in words:
        assert word in error["message"]


EXPERT = {"shard_strategy": "expert"}


@pytest.mark.parametrize(
    ("model_id", "settings", "status", "rule", "words"),
    [
        (MIXTURE, {"eplb": {}}, 400, "eplb_without_experts", "the strategy is auto"),
        (MIXTURE, {"ranks": 1, "eplb": {}}, 400, "eplb_without_experts", "shard_strategy expert"),
        (MIXTURE, {"expert_format": "int8"}, 400, "format_without_experts", "expert_format is for"),
        (MIXTURE, {"expert_dispatch": "all_to_all"}, 400, "dispatch_without_experts", "expert_dispatch is"),
        (MIXTURE, {**EXPERT, "ranks": 1, "eplb": {}}, 400, "one_rank", "ask for 2 ranks or more"),
        (MIXTURE, {**EXPERT, "eplb": {"use_async": True}}, 400, "async", "between two batches"),
        (MIXTURE, {**EXPERT, "eplb": {"redundant_experts": -1}}, 400, "out_of_bounds", "at least 0"),
        (MIXTURE, {**EXPERT, "eplb": {"max_bytes": 10**30}}, 400, "out_of_bounds", "at most"),
        (MIXTURE, {**EXPERT, "eplb": {"window": 400}}, 400, "window_longer_than_interval", "at most the"),
        (MODEL, EXPERT, 422, "no_moe_layer", "has no layer with experts"),
        (MODEL, {**EXPERT, "ranks": 2, "eplb": {}}, 422, "no_moe_layer", "auto, pipeline or tensor"),
        (MIXTURE, {**EXPERT, "ranks": 3}, 422, "uneven_slots", "or for 1 redundant_experts"),
        (
            MIXTURE,
            {**EXPERT, "ranks": 2, "eplb": {"redundant_experts": 10}},
            422,
            "expert_twice_on_a_rank",
            "at most 8",
        ),
    ],
)
def test_a_broken_rule_is_refused_before_anything_is_placed(
    node: LocalNode, mixture: str, model_id: str, settings: dict[str, Any], status: int, rule: str, words: str
) -> None:
    before = node.call("GET", "/instance").json
    refused = place(node, model_id, **settings)
    assert refused.status == status, refused.body
    error = refused.json["error"]
    assert error["detail"] == {"rule": rule}
    assert error["code"] == ("invalid_settings" if status == 400 else "experts_refused")
    assert words in error["message"]
    assert node.call("GET", "/instance").json == before


def test_an_engine_that_can_not_do_it_is_among_the_reasons(node: LocalNode, mixture: str) -> None:
    refused = place(node, mixture, shard_strategy="expert", ranks=2)
    assert (refused.status, refused.json["error"]["code"]) == (422, "does_not_fit")
    assert "engine mlx can't spread experts" in refused.json["error"]["message"]


def test_previews_take_the_balancer_as_json(node: LocalNode, mixture: str) -> None:
    path = f"/instance/previews?model_id={MIXTURE}&shard_strategy=expert&ranks=2&expert_format=int8"
    asked = node.call("GET", f"{path}&eplb={quote(json.dumps({'redundant_experts': 2}))}").json["previews"][0]
    assert asked["settings"]["eplb"]["redundant_experts"] == 2
    assert asked["settings"]["expert_format"] == "int8"
    assert not asked["fits"]
    assert "engine mlx can't spread experts" in asked["candidates"][0]["reasons"]
    broken = node.call("GET", f"{path}&eplb={quote(json.dumps({'use_async': True}))}").json["previews"][0]
    assert broken["cause"]["detail"] == {"rule": "async"}
    unknown = node.call("GET", f"{path}&eplb={quote(json.dumps({'redundant': 2}))}")
    assert unknown.status == 400
    assert "known are redundant_experts" in unknown.json["error"]["message"]
    for wrong in ("{", "[" * 100_000):
        assert node.call("GET", f"{path}&eplb={wrong[:4000]}").status == 400


def test_an_instance_without_the_balancer_shows_no_experts(node: LocalNode) -> None:
    shown = node.call("GET", "/instance").json["instances"][0]
    assert shown["experts"] is None
    assert shown["placement"]["eplb"] is None
