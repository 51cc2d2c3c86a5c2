"""What a client sees when its runner dies: an error status, or an error event and no [DONE]."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from support.node import ENDLESS, LocalNode, local_node
from support.openai_answers import assert_openai
from support.tiny import tiny_model_dir


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    """A node of its own: its runners are killed."""
    home: Path = tmp_path_factory.mktemp("broken-streams")
    tiny_model_dir(home / "models" / ENDLESS, endless=True)
    with local_node(home) as local:
        local.place(ENDLESS, context=4096)
        yield local


def runner_pid(node: LocalNode) -> int:
    [instance] = node.call("GET", "/instance").json["instances"]
    return instance["runners"][0]["pid"]


def opened(node: LocalNode, **fields: Any) -> HTTPResponse:
    connection = node.connect()
    body = {"model": ENDLESS, "messages": [{"role": "user", "content": "cue"}], "max_tokens": 4000, **fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    return connection.getresponse()


def test_a_stream_ends_with_the_error(node: LocalNode) -> None:
    response = opened(node, stream=True)
    while b'"content":"' not in response.readline():
        pass
    os.kill(runner_pid(node), signal.SIGKILL)
    last = [line for line in response.read().split(b"\n") if line.startswith(b"data: ")][-1]
    error = json.loads(last[6:])
    assert_openai("ErrorResponse", error)
    assert error["error"]["type"] == "service_unavailable_error"
    assert "SIGKILL" in error["error"]["message"]
    assert node.call("GET", f"/instance/await?model_id={ENDLESS}").status == 200


def test_a_whole_answer_becomes_an_error_status(node: LocalNode) -> None:
    pid = runner_pid(node)
    connection = node.connect()
    body = {"model": ENDLESS, "prompt": "cue", "max_tokens": 4000}
    connection.request("POST", "/v1/completions", json.dumps(body))
    while not node.call("GET", "/state/tasks").json:
        pass
    os.kill(pid, signal.SIGKILL)
    response = connection.getresponse()
    error = json.loads(response.read())
    assert response.status == 503
    assert int(response.headers["Retry-After"]) > 0
    assert_openai("ErrorResponse", error)


def test_a_long_silence_is_filled_with_comments(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner stands still: the stream opens by itself, stays alive, and then goes on."""
    monkeypatch.setattr("api.sse.KEEP_ALIVE_S", 0.05)
    assert node.call("GET", f"/instance/await?model_id={ENDLESS}").status == 200
    pid = runner_pid(node)
    os.kill(pid, signal.SIGSTOP)
    response = opened(node, stream=True, max_tokens=3)
    lines = [response.readline() for _ in range(6)]
    os.kill(pid, signal.SIGCONT)
    assert b'"role":"assistant"' in lines[0]
    assert lines[2::2] == [b": keep-alive\n"] * 2
    rest = response.read()
    assert b'"content":"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


def test_meanwhile_it_is_not_ready_and_then_it_is(node: LocalNode) -> None:
    assert node.call("GET", f"/instance/await?model_id={ENDLESS}").status == 200
    assert opened(node, max_tokens=2).status == 200
