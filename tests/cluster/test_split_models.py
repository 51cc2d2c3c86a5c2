"""One model over several machines, and over several devices of one: the same tokens as on one device."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.lan import MODEL, lan
from support.served import ServedNode
from support.tiny import tiny_model_dir

CHAT = {"messages": [{"role": "user", "content": "Write one sentence about the sea."}], "temperature": 0}


def answer(node: ServedNode, instance: str, tokens: int) -> str:
    status, body = node.request(
        "POST", "/v1/chat/completions", {**CHAT, "model": instance, "max_tokens": tokens}, timeout=300
    )
    assert status == 200, body
    return body["choices"][0]["message"]["content"]


def split(node: ServedNode, model: str, strategy: str, ranks: int, timeout: float = 120) -> str:
    instance = node.place(model, shard_strategy=strategy, ranks=ranks, context=256, batch=2)
    node.ready(instance, timeout)
    placed = node.get(f"/instance/{instance}")["placement"]["ranks"]
    assert len(placed) == ranks
    return instance


def test_devices_of_one_node(tmp_path: Path) -> None:
    tiny_model_dir(tmp_path / "models" / MODEL, endless=True)
    with ServedNode(tmp_path, cpu_devices=2, threads=1) as node:
        alone = node.place(MODEL, context=256, batch=2)
        node.ready(alone)
        expected = answer(node, alone, 40)
        for strategy in ("pipeline", "tensor"):
            instance = split(node, MODEL, strategy, 2)
            assert answer(node, instance, 40) == expected
            node.request("DELETE", f"/instance/{instance}")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
def test_smollm2_over_machines(tmp_path: Path, smollm2: Path) -> None:
    with lan(tmp_path, 4, models_read_only_dirs=smollm2.parent, decode_timeout_s=60) as net:
        api = net.nodes[3]
        three = [net.node_id(node) for node in net.nodes[:3]]
        alone = api.place(smollm2.name, node_id=three[0], context=256, batch=2)
        api.ready(alone, 300)
        expected = answer(api, alone, 24)
        assert "sea" in expected
        api.request("DELETE", f"/instance/{alone}")
        for strategy, ranks in (("pipeline", 2), ("pipeline", 3), ("tensor", 3)):
            instance = split(api, smollm2.name, strategy, ranks, 300)
            nodes = {rank["node_id"] for rank in api.get(f"/instance/{instance}")["placement"]["ranks"]}
            assert len(nodes) == ranks, "every rank on a machine of its own"
            assert answer(api, instance, 24) == expected
            api.request("DELETE", f"/instance/{instance}")


@pytest.mark.model
def test_what_can_not_be_shared_evenly_is_refused_by_the_placement(tmp_path: Path, smollm2: Path) -> None:
    settings = {"shard_strategy": "tensor", "ranks": 2, "context": 256}
    with ServedNode(tmp_path, cpu_devices=2, models_read_only_dirs=smollm2.parent) as node:
        status, body = node.request(
            "POST", "/instance", {"model_id": smollm2.name, "placement_settings": settings}
        )
    assert status == 422
    assert "9" in body["error"]["message"]
    assert "head" in body["error"]["message"]
