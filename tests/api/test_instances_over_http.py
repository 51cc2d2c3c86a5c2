"""Instances through HTTP: placed, previewed, awaited, retried, deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.node import MODEL, LocalNode


def sse(node: LocalNode, path: str, **headers: str) -> Iterator[tuple[str, str, Any]]:
    """(id, name, data) of server-sent events until the stream ends."""
    connection = node.connect()
    connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    fields: dict[str, str] = {}
    for raw in response:
        line = raw.decode().rstrip("\n")
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"])
            fields = {}
    connection.close()


def delete(node: LocalNode, instance_id: str) -> None:
    assert node.call("DELETE", f"/instance/{instance_id}").status == 200


def test_from_placement_to_deletion(node: LocalNode) -> None:
    body = {"model_id": MODEL, "placement_settings": {"shard_strategy": "tensor", "context": 128, "batch": 2}}
    placed = node.call("POST", "/instance", body)
    assert placed.status == 201
    instance_id = placed.json["instance_id"]
    assert placed.json["instance"]["status"] == "placed"
    *steps, (_, name, ready) = sse(
        node, f"/instance/await?instance_id={instance_id}", Accept="text/event-stream"
    )
    assert name == "ready"
    assert ready["status"] == "ready"
    assert [step["phase"] for _, _, step in steps][-1] == "ready"
    assert "Loading" in {step["phase"] for _, _, step in steps}
    seen = node.call("GET", f"/instance/{instance_id}").json
    assert seen["runners"][0]["status"] == "Ready"
    assert seen["runners"][0]["pid"] > 0
    assert seen["placement"]["context"] == 128
    delete(node, instance_id)
    assert node.call("GET", f"/instance/{instance_id}").status == 404
    assert node.call("GET", f"/instance/await?instance_id={instance_id}").status == 404


def test_an_idempotency_key_places_once(node: LocalNode) -> None:
    body = {"model_id": MODEL, "placement_settings": {"context": 64}}
    answers = [node.call("POST", "/instance", body, Idempotency_Key="place-it-once") for _ in range(3)]
    assert len({answer.json["instance_id"] for answer in answers}) == 1
    assert answers[0].json["command_id"] == "place-it-once"
    other = node.call("POST", "/instance", {"model_id": MODEL}, Idempotency_Key="place-it-once")
    assert (other.status, other.json["error"]["code"]) == (409, "idempotency_key_reused")
    delete(node, answers[0].json["instance_id"])
    again = node.call("POST", "/instance", body, Idempotency_Key="place-it-once")
    assert (again.status, again.json["instance"]) == (201, None)


def test_previews_have_no_effect(node: LocalNode) -> None:
    before = node.call("GET", "/state").json["seq"]
    previews = node.call("GET", f"/instance/previews?model_id={MODEL}&context=256").json["previews"]
    assert node.call("GET", "/state").json["seq"] == before
    asked = previews[0]
    assert asked["fits"]
    assert asked["settings"]["context"] == 256
    assert [c["verdict"] for c in asked["candidates"]].count("chosen") == 1
    assert {preview["title"] for preview in previews} > {"as asked", "one sequence at a time"}
    wrong = node.call("GET", f"/instance/previews?model_id={MODEL}&engine=abacus").json["previews"][0]
    assert not wrong["fits"]
    assert "abacus" in wrong["cause"]["message"]


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(node: LocalNode) -> None:
    body = {"model_id": MODEL, "placement_settings": {"context": 4096, "batch": 65536}}
    refused = node.call("POST", "/instance", body)
    assert refused.status == 422
    assert refused.json["error"]["code"] == "does_not_fit"
    assert "GiB" in refused.json["error"]["message"]
    assert refused.json["error"]["detail"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"model_id": "acme/nothing"}, 404, "acme/nothing"),
        ({"model_id": "../../etc/passwd"}, 400, "passwd"),
        ({"model_id": MODEL, "placement_settings": {"context": 10**9}}, 400, "4096"),
        ({"model_id": MODEL, "placement_settings": {"context": -1}}, 400, "$.placement_settings.context"),
        ({"model_id": MODEL, "placement_settings": {"batch": 10**30}}, 400, "$.placement_settings.batch"),
        ({"model_id": MODEL, "placement_settings": {"shard_strategy": "sideways"}}, 400, "sideways"),
        ({"model_id": 7}, 400, "$.model_id"),
        ({}, 400, "model_id"),
    ],
)
def test_placements_that_are_refused(node: LocalNode, body: Any, status: int, word: str) -> None:
    answer = node.call("POST", "/instance", body)
    assert answer.status == status, answer.body
    assert word in answer.json["error"]["message"]


def test_what_is_not_there_or_not_so(node: LocalNode) -> None:
    for method, path in (
        ("GET", "/instance/instance-none"),
        ("DELETE", "/instance/instance-none"),
        ("POST", "/instance/instance-none/retry"),
        ("GET", "/instance/await?instance_id=instance-none"),
        ("GET", "/instance/await?model_id=acme/nothing"),
        ("GET", "/instance/previews?model_id=acme/nothing"),
    ):
        assert node.call(method, path).status == 404, path
    instance_id = node.call("GET", "/instance").json["instances"][0]["instance_id"]
    retried = node.call("POST", f"/instance/{instance_id}/retry")
    assert (retried.status, retried.json["error"]["code"]) == (409, "not_failed")
    assert node.call("GET", "/instance/await").status == 400
    assert node.call("GET", "/instance/await?model_id=x&timeout=nan").status == 400


def test_waiting_has_an_end(node: LocalNode) -> None:
    body = {"model_id": MODEL, "placement_settings": {"context": 96}}
    instance_id = node.call("POST", "/instance", body).json["instance_id"]
    late = node.call("GET", f"/instance/await?instance_id={instance_id}&timeout=0")
    assert late.status in (200, 504)
    if late.status == 504:
        assert late.json["error"]["code"] == "not_ready_in_time"
        assert int(late.headers["Retry-After"]) > 0
    busy = node.call("POST", "/v1/completions", {"model": instance_id, "prompt": "x", "max_tokens": 1})
    if busy.status != 200:
        assert (busy.status, busy.json["error"]["code"]) == (503, "instance_not_ready")
        assert int(busy.headers["Retry-After"]) > 0
    assert node.call("GET", f"/instance/await?instance_id={instance_id}").status == 200
    delete(node, instance_id)


def test_a_model_in_use_is_not_deleted(node: LocalNode) -> None:
    refused = node.call("DELETE", f"/models/{MODEL}")
    assert (refused.status, refused.json["error"]["code"]) == (409, "model_in_use")
    assert node.call("DELETE", "/models/acme/nothing").status == 404
