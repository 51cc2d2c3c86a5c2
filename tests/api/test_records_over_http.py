"""The record through HTTP: state, events, decisions, and streams that resume without a gap."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from support.node import MODEL, LocalNode


def follow(node: LocalNode, query: str = "", **headers: str) -> Generator[tuple[int, str, Any]]:
    """(id, name, data) of followed events; ends when closed."""
    connection = node.connect(timeout=30)
    connection.request("GET", f"/events?follow=1{query}", headers=headers)
    name, seq = "", 0
    try:
        for raw in connection.getresponse():
            field, _, value = raw.decode().rstrip("\n").partition(": ")
            if field == "id":
                seq = int(value)
            elif field == "event":
                name = value
            elif field == "data":
                yield seq, name, json.loads(value)
    finally:
        connection.close()


def take(events: Iterator[tuple[int, str, Any]], count: int) -> list[tuple[int, str, Any]]:
    return [next(events) for _ in range(count)]


def test_pages_of_events_are_gapless(node: LocalNode) -> None:
    head = node.call("GET", "/events?limit=1").json["head"]
    after, seqs = 0, list[int]()
    while after < head:
        page = node.call("GET", f"/events?after={after}&limit=7").json
        seqs += [record["seq"] for record in page["events"]]
        assert page["after"] > after
        after = page["after"]
    assert seqs[:head] == list(range(1, head + 1))


def test_filters(node: LocalNode) -> None:
    placed = node.call("GET", "/events?type=InstancePlaced,InstanceReady").json["events"]
    assert {record["event"]["type"] for record in placed} == {"InstancePlaced", "InstanceReady"}
    assert node.call("GET", "/events?type=InstancePlaced&type=InstanceReady").json["events"] == placed
    subject = placed[0]["event"]["instance_id"]
    about = node.call("GET", f"/events?subject={subject}").json["events"]
    assert [record["event"]["type"] for record in about][:2] == ["InstanceRequested", "InstancePlaced"]
    wrong = node.call("GET", "/events?type=InstanceDreamt")
    assert wrong.status == 400
    assert "InstanceDreamt" in wrong.json["error"]["message"]


@pytest.mark.parametrize(
    "query", ["after=x", "after=-1", "limit=0", "limit=1001", f"after={2**80}", "follow=maybe"]
)
def test_wrong_parameters_are_named(node: LocalNode, query: str) -> None:
    answer = node.call("GET", f"/events?{query}")
    assert answer.status == 400
    assert answer.json["error"]["param"] == query.partition("=")[0]


def test_a_followed_log_resumes_where_it_was_left(node: LocalNode) -> None:
    stream = follow(node)
    first = take(stream, 5)
    stream.close()
    resumed = follow(node, **{"Last-Event-ID": str(first[-1][0])})
    node.call("POST", "/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1})
    head = node.call("GET", "/events?limit=1").json["head"]
    rest = take(resumed, head - first[-1][0])
    assert [seq for seq, _, _ in first + rest] == list(range(1, head + 1))
    pages = node.call("GET", "/events?limit=1000").json["events"]
    assert [data for _, _, data in first + rest] == pages[:head]
    assert all(name == data["event"]["type"] for _, name, data in rest)


def test_following_with_a_filter_sees_what_comes(node: LocalNode) -> None:
    head = node.call("GET", "/events?limit=1").json["head"]
    stream = follow(node, f"&after={head}&type=TaskFinished")
    for _ in range(3):
        node.call("POST", "/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1})
    found = take(stream, 3)
    assert [name for _, name, _ in found] == ["TaskFinished"] * 3
    assert found[0][0] > head


def test_decisions(node: LocalNode) -> None:
    refused = node.call("POST", "/instance", {"model_id": MODEL, "placement_settings": {"context": 5000}},
                        Idempotency_Key="too-long")  # fmt: skip
    assert refused.status == 400
    by_command = node.call("GET", "/decisions/too-long").json
    assert by_command["rejection"]["code"] == "context_too_long"
    assert by_command["events"] == []
    assert by_command["command"]["type"] == "PlaceInstance"
    by_number = node.call("GET", f"/decisions/{by_command['decision_id']}").json
    assert by_number == by_command
    page = node.call("GET", f"/decisions?after={by_command['decision_id'] - 1}&limit=1").json
    assert page["decisions"] == [by_command]
    for missing in ("999999999", "none-such", "9" * 30):
        assert node.call("GET", f"/decisions/{missing}").status == 404


def test_state_and_its_parts(node: LocalNode) -> None:
    state = node.call("GET", "/state").json
    assert state["nodes"][node.node.node_id]["up"]
    assert node.call("GET", f"/state/nodes/{node.node.node_id}/name").json
    assert node.call("GET", f"/state/models/{MODEL}/card/n_layers").json == 2
    assert node.call("GET", f"/state/models/{MODEL.replace('/', '%2F')}/card/n_layers").json == 2
    device = node.call("GET", f"/state/nodes/{node.node.node_id}/devices/0/device_id").json
    assert isinstance(device, str)
    for missing in ("nothing", "models/none", f"nodes/{node.node.node_id}/devices/99", "seq/x"):
        assert node.call("GET", f"/state/{missing}").status == 404


def test_health(node: LocalNode) -> None:
    for path in ("/healthz", "/health"):
        assert node.call("GET", path).json["status"] == "ok"
    ready = node.call("GET", "/readyz").json
    assert ready["status"] == "ready"
    assert len(ready["ready_instances"]) >= 2
    assert node.call("GET", "/").json["links"]["documentation"] == "/openapi.json"
