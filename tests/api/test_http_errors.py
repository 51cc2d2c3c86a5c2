"""Every error is an object with a sentence, whatever went wrong and wherever."""

from __future__ import annotations

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
