"""Nodes leave and return one by one under load, and new ones come: whoever asks gets an answer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.chats import chat_body
from support.lan import MODEL, Lan, lan, one_log
from support.served import ServedNode, eventually

from events.check import check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 40
BUSY = {"instance_not_ready", "model_not_running", "node_stopped", "node_died", "node_lost"}
"""What a client may be told while the instances move; each says to ask again."""


class Caller(threading.Thread):
    """Chats with whatever instance there is, through one node. Notes all answers but a closed door."""

    def __init__(self, node: ServedNode) -> None:
        super().__init__(daemon=True)
        self._node = node
        self.over = threading.Event()
        self.answered = 0
        self.refused: list[dict[str, Any]] = []
        self.wrong: list[object] = []
        self.start()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                status, answer = self._node.request(
                    "POST", "/v1/chat/completions", chat_body(MODEL, TOKENS), timeout=60
                )
            except TimeoutError as error:
                self.wrong.append(error)
            except (OSError, ValueError):
                time.sleep(0.1)  # the node is stopped
            else:
                self._note(status, answer)

    def _note(self, status: int, answer: dict[str, Any]) -> None:
        if status == 200 and answer["usage"]["completion_tokens"] == TOKENS:
            self.answered += 1
        elif status == 503:
            self.refused.append(answer["error"])
            time.sleep(0.1)
        else:
            self.wrong.append((status, answer))


def restart(net: Lan, node: ServedNode) -> None:
    """Ctrl-C, the others go on, and it comes back."""
    assert node.stop() == 0
    others = [other for other in net.nodes if other is not node]
    net.together(*others)
    for other in others:
        assert other.request("POST", "/instance", {"model_id": "unknown"})[0] == 404
    node.start(wait=False)
    net.together(*net.nodes)


def test_nodes_restart_one_by_one_under_load(tmp_path: Path) -> None:
    with lan(tmp_path, 3) as net:
        first = net.nodes[0]
        instances = [first.place(MODEL, context=512, batch=4) for _ in range(2)]
        for instance_id in instances:
            first.ready(instance_id)
        callers = [Caller(node) for node in net.nodes]
        for node in [*net.nodes, net.master(first)]:
            before = [caller.answered for caller in callers]
            restart(net, node)
            eventually(
                lambda before=before: all(
                    caller.answered > then for caller, then in zip(callers, before, strict=True)
                ),
                60,
            )
        for caller in callers:
            caller.over.set()
        for caller in callers:
            caller.join(90)
            assert not caller.is_alive(), "a request hangs"
            assert not caller.wrong, caller.wrong
            codes = {error["code"] for error in caller.refused}
            assert codes <= BUSY, caller.refused
        for instance_id in instances:
            first.ready(instance_id)
        stops = [event["event"] for event in first.events("NodeStopped")]
        assert len(stops) == 4
        assert all(stop["clean"] for stop in stops), stops
        eventually(lambda: len({node.get("/state")["seq"] for node in net.nodes}) == 1)
        one_log(*net.nodes)
        assert all(check(node.log).ok for node in net.nodes)


def test_late_joiners_have_the_whole_log_and_serve(tmp_path: Path) -> None:
    with lan(tmp_path, 1) as net:
        first = net.nodes[0]
        first.ready(first.place(MODEL, context=512, batch=4))
        callers = [Caller(first)]
        eventually(lambda: callers[0].answered > 20)
        for _ in range(3):
            node = net.add()
            node.start()
            callers.append(Caller(node))
            eventually(lambda node=node: len(node.get("/state/nodes")) == len(net.nodes), 60)
        eventually(lambda: all(caller.answered > 10 for caller in callers), 60)
        assert net.master(first) is first, "a node that joined deposed a master that worked"
        for caller in callers:
            caller.over.set()
        for caller in callers:
            caller.join(90)
            assert not caller.wrong, caller.wrong
            assert not caller.refused, caller.refused
        net.together(*net.nodes)
        one_log(*net.nodes)
        assert all(check(node.log).ok for node in net.nodes)
