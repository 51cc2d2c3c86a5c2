"""kill -9 of the master under load: what others run runs on, what is asked in the gap is answered once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.chats import Request, Stream, chat_body
from support.lan import MODEL, Lan, lan, one_log
from support.served import ServedNode, eventually

from events.check import check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 4
LONG, SHORT = 1500, 20


def pinned(net: Lan, node: ServedNode) -> dict[str, Any]:
    settings = {"context": 2048, "batch": 4, "node_id": net.node_id(node)}
    return {"model_id": MODEL, "placement_settings": settings}


def place(net: Lan, node: ServedNode) -> str:
    status, body = node.request("POST", "/instance", pinned(net, node))
    assert status == 201, body
    node.ready(body["instance_id"])
    return body["instance_id"]


class Gap:
    """What is asked of the survivors while nobody leads. The placement is asked for twice, with one key."""

    def __init__(self, net: Lan, survivors: list[ServedNode], instances: dict[int, str], key: str) -> None:
        wish = pinned(net, survivors[0])
        self.placements = [
            Request(node, "POST", "/instance", wish, Idempotency_Key=key) for node in survivors
        ]
        self.chats = [
            Request(node, "POST", "/v1/chat/completions", chat_body(instances[other.port], SHORT))
            for node in survivors
            for other in survivors
        ]

    def check(self, node: ServedNode) -> str:
        """Every command was answered, and done, exactly once. Returns the instance."""
        answers = [request.answer() for request in self.placements]
        assert [status for status, _, _ in answers] == [201] * len(answers), answers
        (instance_id,) = {body["instance_id"] for _, _, body in answers}
        assert len(events_on(node, instance_id, "InstanceRequested")) == 1
        for request in self.chats:
            status, headers, body = request.answer()
            assert status == 200, body
            assert body["usage"]["completion_tokens"] == SHORT
            tasks = [e for e in all_events(node, "TaskCreated") if e["request_id"] == headers["X-Request-Id"]]
            assert len(tasks) == 1
            ends = events_on(node, tasks[0]["task_id"], "TaskFinished,TaskFailed,TaskCancelled")
            assert [end["type"] for end in ends] == ["TaskFinished"]
        return instance_id


def events_on(node: ServedNode, subject: str, types: str) -> list[dict[str, Any]]:
    page = node.get(f"/events?limit=1000&subject={subject}&type={types}")
    return [each["event"] for each in page["events"]]


def all_events(node: ServedNode, types: str) -> list[dict[str, Any]]:
    after, found = 0, []
    while True:
        page = node.get(f"/events?limit=1000&after={after}&type={types}")
        found += [each["event"] for each in page["events"]]
        if page["after"] >= page["head"]:
            return found
        after = page["after"]


def _kill_the_master(net: Lan, instances: dict[int, str], expected: str, round_: int) -> None:
    master = net.master(net.nodes[0])
    first, second = survivors = [node for node in net.nodes if node is not master]
    eventually(lambda: all(len(node.runner_pids()) == 1 for node in survivors))
    runners = [node.runner_pids()[0] for node in survivors]
    pairs = [(a, b) for a in survivors for b in survivors]
    on_survivors = [Stream(client, instances[runner.port], LONG) for client, runner in pairs]
    on_master = [Stream(client, instances[master.port], LONG) for client in (*survivors, *survivors)]
    for stream in (*on_survivors, *on_master):
        stream.start()
    eventually(lambda: all(stream.text for stream in (*on_survivors, *on_master)), 60)

    master.kill()
    gap = Gap(net, survivors, instances, f"gap-{round_}")

    for stream in (*on_survivors, *on_master):
        stream.join(120)
    assert [stream.outcome for stream in on_survivors] == ["finished"] * 4
    assert all(stream.text == expected for stream in on_survivors)
    assert [stream.outcome for stream in on_master] == ["error"] * 4
    assert all(expected.startswith(stream.text) for stream in on_master)
    extra = gap.check(second)
    net.together(*survivors)
    assert all(runner in node.runner_pids() for node, runner in zip(survivors, runners, strict=True)), (
        "a model was unloaded"
    )
    status, body = first.request("DELETE", f"/instance/{extra}")
    assert status == 200, body

    leader = net.master(first)
    master.start(wait=False)
    net.together(*net.nodes)
    assert net.master(first) is leader, "who came back deposed a master that worked"
    master.ready(instances[master.port])


def test_the_master_is_killed_again_and_again(tmp_path: Path) -> None:
    with lan(tmp_path, 3) as net:
        instances = {node.port: place(net, node) for node in net.nodes}
        status, answer = net.nodes[0].request(
            "POST", "/v1/chat/completions", chat_body(instances[net.nodes[0].port], LONG)
        )
        assert status == 200, answer
        expected = answer["choices"][0]["message"]["content"]
        for round_ in range(ROUNDS):
            _kill_the_master(net, instances, expected, round_)
        eventually(lambda: len({node.get("/state")["seq"] for node in net.nodes}) == 1)
        one_log(*net.nodes)
        assert all(check(node.log).ok for node in net.nodes)
