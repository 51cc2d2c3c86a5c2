"""A cluster that is divided and heals: one log in the end, what lost is kept and told, models live on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from support.lan import MODEL, Lan, decisions, lan
from support.served import ServedNode, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "go"}], "max_tokens": 20, "temperature": 0}


def rejected(node: ServedNode) -> list[str]:
    """The commands in the node's rejected branches."""
    connection = sqlite3.connect(f"file:{node.log}?mode=ro", uri=True)
    try:
        return [row[0] for row in connection.execute("SELECT command_id FROM rejected_decisions")]
    finally:
        connection.close()


def place(node: ServedNode, key: str, on: str) -> str:
    """Place with a key of our own, so that the command can be found again."""
    settings = {"context": 512, "batch": 4, "node_id": on}
    status, body = node.request(
        "POST",
        "/instance",
        {"model_id": MODEL, "placement_settings": settings},
        headers={"Idempotency-Key": key},
    )
    assert status == 201, body
    return body["instance_id"]


def told_of_branches(net: Lan) -> bool:
    """Whether the common log names every command that was rejected anywhere."""
    told = {
        command
        for event in net.nodes[0].events("BranchRejected")
        for command in event["event"]["command_ids"]
    }
    return {command for node in net.nodes for command in rejected(node)} <= told


def one_log_everywhere(net: Lan) -> bool:
    """Nodes that meet again have news for each other: their logs are equal once these are in all of them."""
    first, *others = [decisions(node) for node in net.nodes]
    return all(other == first for other in others)


def _divide_and_heal(net: Lan, minority: list[ServedNode], majority: list[ServedNode]) -> None:
    numbers = [net.nodes.index(node) + 1 for node in minority]
    before = {
        node.port: place(node, f"before-{number}", net.node_id(node)) for number, node in enumerate(net.nodes)
    }
    for node in net.nodes:
        node.ready(before[node.port])
    runners = {node.port: node.runner_pids() for node in net.nodes}

    net.switch.divide(*numbers)
    net.together(*minority)
    net.together(*majority)
    small = place(minority[0], "in-the-minority", net.node_id(minority[0]))
    large = place(majority[0], "in-the-majority", net.node_id(majority[0]))
    minority[0].ready(small)
    majority[0].ready(large)

    net.switch.join(*numbers)
    net.together(*net.nodes)

    eventually(lambda: told_of_branches(net) and one_log_everywhere(net))
    commands = {command for _, command in decisions(net.nodes[0])}
    lost = {command for node in net.nodes for command in rejected(node)}
    acknowledged = {"in-the-minority", "in-the-majority"}
    assert acknowledged <= commands | lost, "something acknowledged is silently gone"
    assert not commands & lost

    for node in net.nodes:
        node.ready(before[node.port])
        assert runners[node.port][0] in node.runner_pids(), "a running model was unloaded"
    for node in net.nodes:
        status, answer = node.request("POST", "/v1/chat/completions", {**CHAT, "model": before[node.port]})
        assert status == 200, answer


def test_one_against_two(tmp_path: Path) -> None:
    with lan(tmp_path, 3) as net:
        _divide_and_heal(net, net.nodes[:1], net.nodes[1:])


def test_two_against_two(tmp_path: Path) -> None:
    with lan(tmp_path, 4) as net:
        _divide_and_heal(net, net.nodes[:2], net.nodes[2:])


def _reaches(node: ServedNode, other: str) -> bool:
    """Whether the log has the way from one machine to another."""
    own = (node.home / "node_id").read_text().strip()
    measured = [each["event"] for each in node.events("LinksChanged") if each["event"]["node_id"] == own]
    return any(link["node_id"] == other for each in measured for link in each["links"])


def test_a_model_over_two_machines_of_the_losing_side_serves_on(tmp_path: Path) -> None:
    """Its ranks need what only these two machines have, so that no others take over."""
    with lan(tmp_path, 0, start=False) as net:
        for cpus in (2, 2, 1, 1, 1):
            net.add(cpu_devices=cpus)
        net.start()
        lost, others = net.nodes[:2], net.nodes[2:]
        eventually(lambda: _reaches(lost[0], net.node_id(lost[1])))
        instance = lost[0].place(
            MODEL, shard_strategy="pipeline", ranks=2, device_id="cpu:1", context=256, batch=2
        )
        lost[0].ready(instance)
        ranks = lost[0].get(f"/instance/{instance}")["placement"]["ranks"]
        assert {rank["node_id"] for rank in ranks} == {net.node_id(node) for node in lost}
        chat = {**CHAT, "model": instance}
        status, expected = others[0].request("POST", "/v1/chat/completions", chat)
        assert status == 200, expected
        pids = [node.runner_pids() for node in lost]
        assert [len(each) for each in pids] == [1, 1]

        net.switch.divide(1, 2)
        net.together(*lost)
        net.together(*others)
        status, answer = lost[1].request("POST", "/v1/chat/completions", chat)
        assert status == 200, "the losing side serves while it is on its own"
        assert others[0].request("POST", "/v1/chat/completions", chat)[0] != 200

        net.switch.join(1, 2)
        net.together(*net.nodes)
        eventually(lambda: told_of_branches(net) and one_log_everywhere(net))
        others[0].ready(instance)
        assert others[0].get(f"/instance/{instance}")["placement"]["ranks"] == ranks
        eventually(lambda: [node.runner_pids() for node in lost] == pids, explain=lost[0].output)
        known = others[0].get("/state")["runners"]
        assert [known[rank["runner_id"]]["pid"] for rank in ranks] == [
            pid
            for rank in ranks
            for node, (pid,) in zip(lost, pids, strict=True)
            if net.node_id(node) == rank["node_id"]
        ]
        loaded = {
            each["event"]["runner_id"]
            for each in others[0].events("RunnerStatusChanged")
            if each["event"]["status"]["status"] == "Loaded"
        }
        assert loaded == {rank["runner_id"] for rank in ranks}, "nothing was loaded twice"
        status, answer = others[0].request("POST", "/v1/chat/completions", chat)
        assert status == 200, answer
        assert answer["choices"] == expected["choices"]


def test_the_masters_side_is_the_smaller_one(tmp_path: Path) -> None:
    with lan(tmp_path, 3) as net:
        master = net.master(net.nodes[0])
        others = [node for node in net.nodes if node is not master]
        _divide_and_heal(net, [master], others)
        eventually(lambda: net.nodes[0].get("/state")["epoch"] >= 2)
