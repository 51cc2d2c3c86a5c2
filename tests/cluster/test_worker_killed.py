"""A node with a running model dies or is cut off: the model is ready elsewhere, and the log tells why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.chats import Stream, chat_body
from support.command import Cuebook
from support.lan import MODEL, Lan, lan, one_log
from support.served import ServedNode, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONG, SHORT = 3000, 20


def instance_of(node: ServedNode, instance_id: str) -> dict[str, Any]:
    return node.get(f"/state/instances/{instance_id}")


def seat(node: ServedNode, instance_id: str) -> str:
    """The node that runs an instance; empty where none does."""
    placement = instance_of(node, instance_id)["placement"]
    return placement["ranks"][0]["node_id"] if placement else ""


def place_off_the_master(net: Lan) -> tuple[str, ServedNode]:
    """An instance that may run anywhere, on a node that does not lead; that node."""
    first = net.nodes[0]
    leader = net.node_id(net.master(first))
    placed: list[str] = []
    while not placed or seat(first, placed[-1]) == leader:
        placed.append(first.place(MODEL, context=4096, batch=4))
    for instance_id in placed[:-1]:
        assert first.request("DELETE", f"/instance/{instance_id}")[0] == 200
    first.ready(placed[-1])
    carrier = next(node for node in net.nodes if net.node_id(node) == seat(first, placed[-1]))
    eventually(lambda: sum(len(node.runner_pids()) for node in net.nodes) == 1)
    return placed[-1], carrier


def chat(node: ServedNode, instance_id: str) -> None:
    status, answer = node.request("POST", "/v1/chat/completions", chat_body(instance_id, SHORT))
    assert status == 200, answer


def ends(node: ServedNode) -> list[str]:
    """The tasks that have ended, once for each time."""
    events = node.events("TaskFinished", "TaskFailed", "TaskCancelled")
    return [event["event"]["task_id"] for event in events]


def test_what_a_killed_node_ran_is_ready_elsewhere(tmp_path: Path) -> None:
    with lan(tmp_path, 3) as net:
        instance_id, carrier = place_off_the_master(net)
        lost = net.node_id(carrier)
        others = [node for node in net.nodes if node is not carrier]
        streams = [Stream(node, instance_id, LONG).begun() for node in (*others, *others)]

        carrier.kill()
        for stream in streams:
            stream.join(60)
        assert [stream.outcome for stream in streams] == ["error"] * 4
        assert all(lost in stream.errors[0]["message"] for stream in streams), streams[0].errors

        eventually(
            lambda: (
                seat(others[0], instance_id) not in ("", lost)
                and instance_of(others[0], instance_id)["status"] == "ready"
            ),
            60,
        )
        for node in others:
            chat(node, instance_id)
        told = Cuebook(others[1].home)("replay", "why", instance_id)
        assert told.code == 0, told.err
        story = told.out
        assert f"Node {lost} has not been heard" in story, story
        again = seat(others[0], instance_id)
        assert again in story[story.index("has not been heard") :], story
        one_log(*others)

        carrier.start(wait=False)
        net.together(*net.nodes)
        assert seat(carrier, instance_id) == again, "a returning node took its instance back"
        assert not carrier.runner_pids()
        chat(carrier, instance_id)
        one_log(*net.nodes)


def test_a_node_that_was_cut_off_gives_up_what_runs_elsewhere_by_now(tmp_path: Path) -> None:
    with lan(tmp_path, 3) as net:
        instance_id, carrier = place_off_the_master(net)
        lost = net.node_id(carrier)
        others = [node for node in net.nodes if node is not carrier]
        chat(others[0], instance_id)
        streams = [Stream(node, instance_id, LONG).begun() for node in others]

        net.switch.cut(net.number(carrier))
        for stream in streams:
            stream.join(60)
        assert [stream.outcome for stream in streams] == ["error"] * 2
        eventually(lambda: seat(others[0], instance_id) not in ("", lost), 60)
        others[0].ready(instance_id)
        assert carrier.runner_pids(), "who was cut off stopped a model that it could go on serving"

        net.switch.heal(net.number(carrier))
        net.together(*net.nodes)
        assert seat(carrier, instance_id) != lost
        eventually(lambda: not carrier.runner_pids(), 30, carrier.output)
        for node in net.nodes:
            chat(node, instance_id)
        ended = ends(net.nodes[0])
        assert len(ended) == len(set(ended)), "a task ended twice"
        assert [stream.outcome for stream in streams] == ["error"] * 2
        one_log(*net.nodes)


def test_a_node_that_was_cut_off_carries_on_what_could_run_nowhere_else(tmp_path: Path) -> None:
    with lan(tmp_path, 3) as net:
        leader = net.master(net.nodes[0])
        carrier = next(node for node in net.nodes if node is not leader)
        others = [node for node in net.nodes if node is not carrier]
        instance_id = leader.place(MODEL, context=4096, batch=4, node_id=net.node_id(carrier))
        leader.ready(instance_id)
        (runner,) = carrier.runner_pids()
        stream = Stream(leader, instance_id, LONG).begun()

        net.switch.cut(net.number(carrier))
        stream.join(60)
        assert stream.outcome == "error"
        net.together(*others)
        assert instance_of(leader, instance_id)["status"] == "waiting"

        net.switch.heal(net.number(carrier))
        net.together(*net.nodes)
        leader.ready(instance_id)
        assert carrier.runner_pids() == [runner], "a model that ran was loaded anew"
        for node in net.nodes:
            chat(node, instance_id)
        ended = ends(net.nodes[0])
        assert len(ended) == len(set(ended)), "a task ended twice"
        one_log(*net.nodes)


@pytest.mark.parametrize("seconds", [1.0, 2.6, 4.5])
def test_a_short_cut_harms_nothing_that_is_not_told(tmp_path: Path, seconds: float) -> None:
    """Too short for the links to notice, for the node to count as lost, and just long enough."""
    with lan(tmp_path, 3) as net:
        instance_id, carrier = place_off_the_master(net)
        others = [node for node in net.nodes if node is not carrier]
        whole = [Stream(node, instance_id, LONG).begun() for node in net.nodes]
        for stream in whole:
            stream.join(60)
        expected = whole[0].text
        assert [stream.text for stream in whole] == [expected] * 3
        streams = [Stream(node, instance_id, LONG).begun() for node in others]

        net.switch.cut(net.number(carrier))
        time.sleep(seconds)
        net.switch.heal(net.number(carrier))
        for stream in streams:
            stream.join(60)
        for stream in streams:
            if stream.outcome == "finished":
                assert stream.text == expected, "a stream has a hole"
            else:
                assert stream.outcome == "error", stream.broken
        net.together(*net.nodes)
        others[0].ready(instance_id)
        eventually(lambda: sum(len(node.runner_pids()) for node in net.nodes) == 1, 30)
        for node in net.nodes:
            chat(node, instance_id)
        ended = ends(net.nodes[0])
        assert len(ended) == len(set(ended)), "a task ended twice"
        one_log(*net.nodes)
