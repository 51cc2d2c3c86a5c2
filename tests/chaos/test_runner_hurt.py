"""A runner killed or stopped under a stream: the client is told, the log says why, a new runner comes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.served import ServedNode, eventually
from support.tiny import tiny_model_dir

ENDS = ("TaskFinished", "TaskFailed", "TaskCancelled")
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "go"}], "max_tokens": 3000}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServedNode]:
    tiny_model_dir(tmp_path / "models" / "tiny", endless=True)
    with ServedNode(
        tmp_path,
        decode_timeout_s=2,
        prefill_timeout_s=4,
        load_timeout_s=6,
        start_timeout_s=12,
        warm_up_timeout_s=8,
        backoff_base_s=0.2,
        max_instance_retries=3,
    ) as served:
        yield served


def _ready(node: ServedNode) -> str:
    instance = node.place("tiny", context=4096, batch=8)
    node.ready(instance)
    return instance


class Listener(threading.Thread):
    """Reads one stream to its end."""

    def __init__(self, node: ServedNode) -> None:
        super().__init__(daemon=True)
        self._node = node
        self.chunks: list[Any] = []
        self.last = ""
        self.start()

    def run(self) -> None:
        for data in self._node.stream(CHAT):
            self.last = data
            if data != "[DONE]":
                self.chunks.append(json.loads(data))


def _why(node: ServedNode, subject: str) -> str:
    command = [sys.executable, "-m", "api.cli.main", "replay", "why", subject, "--log", str(node.log)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("signal_", "word"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "decode")])
def test_hurt_in_the_middle_of_eight_streams(node: ServedNode, signal_: signal.Signals, word: str) -> None:
    instance = _ready(node)
    listeners = [Listener(node) for _ in range(8)]
    eventually(lambda: all(len(listener.chunks) > 5 for listener in listeners))
    (victim,) = node.runner_pids()
    os.kill(victim, signal_)

    for listener in listeners:
        listener.join(60)
        assert not listener.is_alive(), "a stream hangs"
        assert listener.last != "[DONE]"
        error = listener.chunks[-1]["error"]
        assert error["message"]
        assert error["code"]

    node.ready(instance)
    assert node.runner_pids() != [victim]
    ends = Counter(recorded["event"]["task_id"] for recorded in node.events(*ENDS))
    assert len(ends) == 8
    assert set(ends.values()) == {1}
    assert word in _why(node, instance)
    status, answer = node.request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5})
    assert status == 200, answer


def test_it_gives_up_with_a_reason_and_starts_again_when_told(node: ServedNode) -> None:
    instance = _ready(node)
    hunting = True

    def hunt() -> None:
        while hunting:
            for pid in node.runner_pids():
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    hunter = threading.Thread(target=hunt, daemon=True)
    hunter.start()
    eventually(lambda: node.get(f"/instance/{instance}")["status"] == "failed", 120)
    hunting = False
    hunter.join()

    set_back = [e["event"]["attempt"] for e in node.events("InstanceSetBack")]
    assert set_back == [1, 2, 3], "the retries are counted"
    view = node.get(f"/instance/{instance}")
    assert view["cause"]["code"] == "runner_killed"
    status, answer = node.request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5})
    assert status == 503
    assert "SIGKILL" in answer["error"]["message"]

    status, answer = node.request("POST", f"/instance/{instance}/retry")
    assert status == 200, answer
    node.ready(instance)
    status, _ = node.request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5})
    assert status == 200
