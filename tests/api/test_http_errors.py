"""Every error is an object with a sentence, whatever went wrong and wherever."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest
from aiohttp import web
from support.node import MODEL, LocalNode
from support.openai_answers import assert_openai

from actors.refusal import MailboxFull, Rejected, Stopped
from api.errors import ApiError, error_response, from_cause, from_exception
from events.values import Cause


@pytest.mark.parametrize(
    ("method", "path", "raw", "status"),
    [
        ("GET", "/nothing/here", None, 404),
        ("GET", "/v1/embeddings", None, 404),
        ("PATCH", "/instance", None, 405),
        ("GET", "/v1/chat/completions", None, 405),
        ("POST", "/v1/chat/completions", b"{not json", 400),
        ("POST", "/v1/chat/completions", b"", 400),
        ("POST", "/v1/chat/completions", b'{"model": "\xff\xfe"}', 400),
        ("POST", "/v1/chat/completions", b'{"a":' * 50_000, 400),
        ("POST", "/instance", b"[]", 400),
        ("POST", "/v1/completions", b" " * (32 * 1024 * 1024 + 1), 413),
        ("GET", "/v1/models/none", None, 404),
        ("GET", "/v1/models/%2e%2e%2fetc", None, 404),
        ("GET", "/events?after=one", None, 400),
    ],
)
def test_errors_are_objects(node: LocalNode, method: str, path: str, raw: bytes | None, status: int) -> None:
    answer = node.call(method, path, raw=raw)
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/json"
    assert_openai("ErrorResponse", answer.json)
    assert answer.json["error"]["message"].endswith(".")
    for secret in ("Traceback", ".py", "site-packages"):
        assert secret not in answer.body.decode()


def test_a_method_that_is_not_allowed_names_those_that_are(node: LocalNode) -> None:
    assert node.call("PATCH", "/instance").headers["Allow"] == "GET, HEAD, POST"


def spoken(node: LocalNode, raw: bytes) -> tuple[int, Any]:
    """The status and the JSON that the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=20) as connection:
        connection.sendall(raw)
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.headers["Content-Type"] == "application/json"
        body = json.loads(response.read())
        assert connection.recv(1) == b""  # closed: what there was to log is logged
        return response.status, body


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
            "invalid_http",
        ),
        (b"GET /healthz HTTP/9.9\r\n\r\n", 400, "invalid_http"),
        (b"POST / HTTP/1.1\r\nContent-Length: two\r\n\r\n", 400, "invalid_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_http"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 400, "line_too_long"),
        (b"GET / HTTP/1.1\r\nCookie: " + b"a" * 9000 + b"\r\n\r\n", 400, "line_too_long"),
        (
            b"POST /models HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
            400,
            "invalid_body",
        ),
        (
            b"POST /instance HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: foo\r\n\r\n",
            417,
            "http_error",
        ),
        (b"POST /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: foo\r\n\r\n", 417, "http_error"),
    ],
)
def test_what_is_no_http_is_an_object_too_and_no_news(
    node: LocalNode, raw: bytes, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    got, body = spoken(node, raw)
    assert (got, body["error"]["code"]) == (status, code)
    assert_openai("ErrorResponse", body)
    assert body["error"]["message"].endswith(".")
    assert not caplog.records


@pytest.mark.parametrize("path", ["/instance", "/v1/completions", "/models", "/instance/instance-1/retry"])
def test_a_form_of_a_web_page_is_refused(node: LocalNode, path: str) -> None:
    answer = node.call("POST", path, {}, Content_Type="text/plain", Origin="http://elsewhere.example")
    assert (answer.status, answer.json["error"]["code"]) == (415, "unsupported_media_type")
    assert node.call("POST", path, {}, Content_Type="text/plain").status != 415
    assert node.call("POST", path, {}, Origin="http://elsewhere.example").status != 415


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "m" * 201, "prompt": "a"}),
        ("/instance", {"model_id": "m" * 201}),
        ("/instance", {"model_id": MODEL, "placement_settings": {"engine": "e" * 201}}),
        ("/models", {"model_id": "m" * 201}),
        ("/models", {"path": "/" + "p" * 5000}),
    ],
)
def test_endless_names_are_refused_and_not_logged(
    node: LocalNode, path: str, body: dict[str, object]
) -> None:
    before = node.call("GET", "/decisions?limit=1").json["head"]
    answer = node.call("POST", path, body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_type")
    assert node.call("GET", "/decisions?limit=1").json["head"] == before


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "p" * (2 * 1024 * 1024)}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "p" * (2 * 1024 * 1024)}]}),
    ],
)
def test_many_choices_of_a_large_prompt_are_too_much(
    node: LocalNode, path: str, prompt: dict[str, object]
) -> None:
    answer = node.call("POST", path, {"model": MODEL, "n": 65, **prompt})
    assert (answer.status, answer.json["error"]["param"]) == (413, "n")
    assert node.call("POST", path, {"model": MODEL, "n": 2, **prompt}).status == 400


def test_a_node_survives_all_of_them(node: LocalNode) -> None:
    assert (
        node.call("POST", "/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1}).status == 200
    )


def test_what_can_be_tried_again_says_when() -> None:
    full = error_response(from_exception(MailboxFull("master", 0.2)))
    assert (full.status, full.headers["Retry-After"]) == (503, "1")
    starting = from_cause(
        Cause(code="instance_not_ready", message="Not yet.", detail={"retry_after": 7}), default=400
    )
    assert error_response(starting).headers["Retry-After"] == "7"
    assert error_response(from_exception(Stopped("master"))).headers["Retry-After"] == "2"
    failed = from_cause(
        Cause(code="instance_not_ready", message="Failed.", detail={"status": "failed"}), default=400
    )
    assert failed.status == 503


def test_unknown_causes_take_the_default() -> None:
    cause = Cause(code="never_heard_of", message="No.")
    assert from_exception(Rejected(cause)).status == 400
    assert from_cause(cause, default=500).body.error.type == "server_error"


def test_what_nobody_foresaw_tells_nothing_but_an_id(caplog: pytest.LogCaptureFixture) -> None:
    error = from_exception(KeyError("/home/someone/secret.py"))
    assert error.status == 500
    assert "secret" not in error.body.error.message
    incident = error.body.error.message.rsplit(" ", 1)[1].rstrip(".")
    assert incident in caplog.text
    assert "secret" in caplog.text


def test_aiohttp_errors_keep_their_status() -> None:
    assert from_exception(web.HTTPRequestURITooLong()).status == 414
    assert isinstance(from_exception(ApiError(418, "x", code="x")), ApiError)
