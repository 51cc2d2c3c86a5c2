"""/openapi.json is what is served: by construction, by the router, by the docs, and by trying."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.node import MODEL, LocalNode

from api.app import ALL_ROUTES
from api.openapi import document

DOCUMENT: dict[str, Any] = json.loads(json.dumps(document(ALL_ROUTES)))
OPERATIONS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]


def resolve(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def test_the_document_is_served(node: LocalNode) -> None:
    assert node.call("GET", "/openapi.json").json == DOCUMENT


def test_every_served_route_is_described_and_the_other_way_round() -> None:
    described = {(method.upper(), path) for path, method in OPERATIONS}
    assert described == {(route.method, route.path) for route in ALL_ROUTES}
    ids = [DOCUMENT["paths"][path][method]["operationId"] for path, method in OPERATIONS]
    assert len(set(ids)) == len(ids)


def test_every_reference_leads_somewhere() -> None:
    names = set(re.findall(r"#/components/schemas/([^\"]+)", json.dumps(DOCUMENT)))
    assert names <= set(DOCUMENT["components"]["schemas"])


def test_the_docs_name_every_endpoint_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
    documented = set(re.findall(r"`((?:GET|POST|DELETE) /[^\s`?]*)", text))
    assert documented == {f"{method.upper()} {path}" for path, method in OPERATIONS}


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/v1/models", "/v1/models/none", "/events"])
def test_head_is_answered_as_get_without_the_body(node: LocalNode, path: str) -> None:
    got, head = node.call("GET", path), node.call("HEAD", path)
    assert (head.status, head.body) == (got.status, b"")
    assert head.headers["Content-Type"] == got.headers["Content-Type"]


@pytest.mark.parametrize("path", ["/events?follow=1", f"/instance/await?model_id={MODEL}"])
def test_head_opens_no_stream(node: LocalNode, path: str) -> None:
    assert node.call("HEAD", path, Accept="text/event-stream").headers["Content-Type"] == "application/json"


def test_head_of_a_command_is_not_allowed(node: LocalNode) -> None:
    assert node.call("HEAD", "/v1/completions").status == 405


def check(answer: Any, path: str, method: str) -> None:
    """The answer has a declared status and, as JSON, its declared schema."""
    declared = DOCUMENT["paths"][path][method]["responses"]
    assert answer.status < 500 or answer.status in (503, 504), answer.body
    assert str(answer.status) in declared, (answer.status, answer.body)
    content = declared[str(answer.status)]["content"]
    kind = answer.headers["Content-Type"].partition(";")[0]
    assert kind in content
    if kind == "application/json":
        resolve(content[kind]["schema"]).validate(answer.json)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a schema, more or less: nearly right is what finds holes."""
    if "$ref" in schema:
        return values(DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    if "anyOf" in schema:
        return st.one_of([values(option) for option in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object" if "properties" in schema:
            return objects(schema["properties"], set(schema.get("required", ())))
        case "object":
            return st.dictionaries(st.text(max_size=8), junk, max_size=2)
        case "array":
            return st.lists(values(schema.get("items", {})), min_size=schema.get("minItems", 0), max_size=3)
        case "integer":
            return st.integers(schema.get("minimum", -3), min(schema.get("maximum", 12), 12))
        case "number":
            return st.floats(schema.get("minimum", -3), schema.get("maximum", 3))
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=12) | st.just(MODEL)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case _:
            return junk


def objects(properties: dict[str, Any], required: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    """The required fields and up to three others: with more, some field would spoil every request."""

    def build(extra: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({name: fit(properties[name]) for name in [*sorted(required), *extra]})

    others = sorted(properties.keys() - required)
    if not others:
        return build([])
    return st.lists(st.sampled_from(others), max_size=3, unique=True).flatmap(build)


def fit(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Nineteen times out of twenty what the schema says."""
    return st.integers(0, 19).flatmap(lambda n: junk if n == 0 else values(schema))


def fuzzed(path: str, method: str, data: st.DataObject) -> tuple[str, Any]:
    operation = DOCUMENT["paths"][path][method]
    query: list[str] = []
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            part = data.draw(st.text(min_size=1, max_size=12) | st.just(MODEL), parameter["name"])
            path = path.replace(f"{{{parameter['name']}}}", quote(part, safe=""))
        elif parameter["in"] == "header" or parameter["name"] in ("follow", "timeout"):
            continue
        elif parameter["required"] or data.draw(st.booleans()):
            if "content" in parameter:
                text = json.dumps(data.draw(fit(parameter["content"]["application/json"]["schema"])))
            else:
                text = str(data.draw(fit(parameter["schema"]), parameter["name"]))
            query.append(f"{parameter['name']}={quote(text, safe='')}")
    if "timeout" in str(operation["parameters"]):
        query.append("timeout=0.2")
    body: Any = None
    if "requestBody" in operation:
        body = data.draw(values(operation["requestBody"]["content"]["application/json"]["schema"]), "body")
    return f"{path}?{'&'.join(query)}" if query else path, body


def tame(path: str, body: Any) -> Any:
    """Keeps the fuzzing from loading models by the dozen and from answers that take long."""
    if not isinstance(body, dict):
        return body
    if path.startswith("/v1/"):
        return {"max_tokens": 3, "max_completion_tokens": 3, **body, "model": MODEL}
    if body.get("model_id") == MODEL and path == "/instance":
        return {**body, "model_id": f"{MODEL}-no"}
    return body


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=[f"{m}-{p}" for p, m in OPERATIONS])
def test_nothing_that_fits_the_document_is_a_500(node: LocalNode, path: str, method: str) -> None:
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(st.data())
    def attack(data: st.DataObject) -> None:
        target, body = fuzzed(path, method, data)
        check(node.call(method.upper(), target, tame(path, body)), path, method)

    attack()


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=[f"{m}-{p}" for p, m in OPERATIONS])
def test_the_usual_answer_has_the_declared_schema(node: LocalNode, path: str, method: str) -> None:
    state = node.call("GET", "/state").json
    instance_id = next(iter(state["instances"]))
    bodies = {
        "/v1/chat/completions": {
            "model": MODEL,
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 2,
        },
        "/v1/completions": {"model": MODEL, "prompt": "x", "max_tokens": 2, "logprobs": 1},
        "/instance": {"model_id": MODEL, "placement_settings": {"context": 9999}},
        "/models": {"model_id": MODEL},
    }
    known = {
        "instance_id": instance_id,
        "model": MODEL,
        "model_id": MODEL,
        "path": "nodes",
        "decision_id": "2",
    }
    target = re.sub(r"{(\w+)}", lambda name: quote(known[name[1]], safe=""), path)
    if path in ("/instance/await", "/instance/previews"):
        target += f"?model_id={MODEL}"
    if method == "delete" and path.startswith("/instance"):
        target = "/instance/none"  # the others still need them
    answer = node.call(method.upper(), target, bodies.get(path) if method == "post" else None)
    check(answer, path, method)
