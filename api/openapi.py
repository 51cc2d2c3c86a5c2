"""/openapi.json, generated from the routes and the Structs that are served."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec

from api.decoding import json_parameters
from api.errors import ErrorAnswer
from api.routes import Route

_REF = "#/components/schemas/{name}"

Schema = dict[str, Any]


def document(routes: Sequence[Route]) -> Schema:
    """The OpenAPI 3.1 document of ``routes``."""
    kinds = list(_kinds(routes))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Cuebook",
            "version": version("cuebook"),
            "description": (
                "An LLM inference cluster whose every decision is on the record. "
                "HEAD is answered wherever GET is, and opens no event stream."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _kinds(routes: Iterable[Route]) -> Iterable[Any]:
    yield ErrorAnswer
    for route in routes:
        kinds = (route.body, route.query, route.answer, route.events)
        yield from (kind for kind in kinds if kind is not None)


def _operation(route: Route, by_kind: dict[int, Schema], components: Schema) -> Schema:
    operation: Schema = {
        "operationId": _operation_id(route),
        "tags": [route.tag],
        "summary": route.title,
        "parameters": _parameters(route, components),
        "responses": _responses(route, by_kind),
    }
    if route.notes:
        operation["description"] = route.notes
    if route.body:
        content = {"application/json": {"schema": by_kind[id(route.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _operation_id(route: Route) -> str:
    """Unique, also where two paths share a handler."""
    words = re.findall(r"\w+", route.path) or ["index"]
    return "_".join([route.method.lower(), *words])


def _parameters(route: Route, components: Schema) -> list[Schema]:
    found: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    found += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}
        for name in route.headers
    ]
    if route.query:
        fields = components[route.query.__name__]
        as_json = json_parameters(route.query)
        for name, schema in fields["properties"].items():
            required = name in fields.get("required", ())
            shape: Schema = {"schema": schema}
            if name in as_json:
                shape = {"content": {"application/json": shape}}
            found.append({"name": name, "in": "query", "required": required, **shape})
    return found


def _responses(route: Route, by_kind: dict[int, Schema]) -> dict[str, Schema]:
    content: Schema = {"application/json": {"schema": by_kind[id(route.answer)]}}
    if route.events is not None:
        content["text/event-stream"] = {"schema": by_kind[id(route.events)]}
    responses: dict[str, Schema] = {str(route.status): _response(route.status, content)}
    for status in route.also:
        responses[str(status)] = _response(status, content)
    error: Schema = {"application/json": {"schema": by_kind[id(ErrorAnswer)]}}
    for status in sorted({400, 500, *route.errors}):
        responses[str(status)] = _response(status, error)
    return responses


def _response(status: int, content: Schema) -> Schema:
    return {"description": HTTPStatus(status).phrase, "content": content}
