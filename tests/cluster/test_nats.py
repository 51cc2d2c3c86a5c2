"""Whole nodes whose cluster is on three NATS servers: servers, the master, a worker die under load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="nats-py is not installed; install cuebook[nats] for this test")

from support.chats import Request, Stream, chat_body
from support.command import Cuebook
from support.lan import MODEL, Lan, one_log
from support.nats_servers import NatsServers, nats_servers
from support.served import ServedNode, eventually
from support.tiny import tiny_model_dir
from test_master_killed import Gap, place
from test_worker_killed import chat, instance_of, place_off_the_master, seat

from events.check import check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONG, SHORT = 2000, 20
DECIDED = 404
"""Answer to the deletion of an instance that is not there: a refusal, which is in the log."""


class OnNats(Lan):
    """Nodes on loopback with what they say carried by NATS."""

    def __init__(self, servers: NatsServers, root: Path, size: int, **settings: object) -> None:
        self.servers = servers
        self.nodes = []
        for number in range(1, size + 1):
            home = root / f"n{number}"
            tiny_model_dir(home / "models" / MODEL, endless=True)
            urls = ",".join(servers.urls)
            given = {"cluster": "stage", "cluster_nats": urls, "node_name": f"n{number}", "threads": 1}
            self.nodes.append(ServedNode(home, **given, **settings))


@contextmanager
def on_nats(root: Path, size: int) -> Iterator[OnNats]:
    with nats_servers(root, 3) as servers:
        made = OnNats(servers, root, size)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def equal_logs(*nodes: ServedNode) -> None:
    eventually(lambda: len({node.get("/state")["seq"] for node in nodes}) == 1, 30)
    one_log(*nodes)
    assert all(check(node.log).ok for node in nodes)


def test_the_master_is_killed_under_load(tmp_path: Path) -> None:
    with on_nats(tmp_path, 3) as net:
        instances = {node.port: place(net, node) for node in net.nodes}
        master = net.master(net.nodes[0])
        first, second = survivors = [node for node in net.nodes if node is not master]
        runners = [node.runner_pids()[0] for node in survivors]
        pairs = [(client, runner) for client in survivors for runner in survivors]
        on_survivors = [Stream(client, instances[runner.port], LONG).begun() for client, runner in pairs]
        on_master = [Stream(client, instances[master.port], LONG).begun() for client in survivors]

        master.kill()
        gap = Gap(net, survivors, instances, "gap")
        for stream in (*on_survivors, *on_master):
            stream.join(120)
        assert [stream.outcome for stream in on_survivors] == ["finished"] * 4
        assert len({stream.text for stream in on_survivors}) == 1
        assert [stream.outcome for stream in on_master] == ["error"] * 2
        extra = gap.check(second)
        net.together(*survivors)
        assert [node.runner_pids()[0] for node in survivors] == runners, "a model was unloaded"
        assert first.request("DELETE", f"/instance/{extra}")[0] == 200

        leader = net.master(first)
        master.start(wait=False)
        net.together(*net.nodes)
        assert net.master(first) is leader, "who came back deposed a master that worked"
        master.ready(instances[master.port])
        equal_logs(*net.nodes)


def test_a_killed_worker_s_model_is_ready_elsewhere(tmp_path: Path) -> None:
    with on_nats(tmp_path, 3) as net:
        instance_id, carrier = place_off_the_master(net)
        lost = net.node_id(carrier)
        others = [node for node in net.nodes if node is not carrier]
        streams = [Stream(node, instance_id, LONG).begun() for node in others]
        carrier.kill()
        for stream in streams:
            stream.join(60)
        assert [stream.outcome for stream in streams] == ["error"] * 2

        def moved() -> bool:
            on = seat(others[0], instance_id)
            return on not in ("", lost) and instance_of(others[0], instance_id)["status"] == "ready"

        eventually(moved, 60)
        for node in others:
            chat(node, instance_id)
        told = Cuebook(others[1].home)("replay", "why", instance_id)
        assert told.code == 0, told.err
        assert f"Node {lost} has not been heard" in told.out
        carrier.start(wait=False)
        net.together(*net.nodes)
        chat(carrier, instance_id)
        equal_logs(*net.nodes)


def seconds_to_decision(node: ServedNode, key: str) -> float:
    """How long it takes to have a command decided that is asked for, with its key, until it is."""
    began = time.monotonic()
    while node.request("DELETE", "/instance/none", headers={"Idempotency-Key": key})[0] != DECIDED:
        assert time.monotonic() - began < 60
        time.sleep(0.1)
    return time.monotonic() - began


def test_a_killed_server_is_survived(tmp_path: Path) -> None:
    with on_nats(tmp_path, 3) as net:
        instance_id = place(net, net.nodes[0])
        (runner,) = net.nodes[0].runner_pids()
        gaps: list[str] = []
        for server in net.servers:
            server.kill()
            asked = [
                Request(node, "POST", "/v1/chat/completions", chat_body(instance_id, SHORT))
                for node in net.nodes
            ]
            gap = seconds_to_decision(net.nodes[0], f"{server.name} is killed")
            gaps.append(f"{gap:.1f}")
            for request in asked:
                status, _, body = request.answer()
                assert status in (200, 502, 503, 504), body
            net.together(*net.nodes)
            for node in net.nodes:
                chat(node, instance_id)
            server.start()
            time.sleep(3)  # the server takes up its copies again
        print(f"\na server killed: a command is decided after {', '.join(gaps)} s")
        assert net.nodes[0].runner_pids() == [runner], "a model was unloaded"
        equal_logs(*net.nodes)


def test_what_cannot_work_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with nats_servers(tmp_path, 1, jetstream=False) as (server,):
        on = {"cluster": "stage", "cluster_nats": server.url}

        def refusal(**settings: object) -> str:
            outcome = Cuebook(tmp_path / "home", 1)("serve", "--port", "0", **settings)
            assert outcome.code == 1
            return outcome.err

        assert "JetStream is off" in refusal(**on)
        server.kill()
        assert f"No NATS server answers at {server.url}" in refusal(**on)
        assert "cluster_nats needs the cluster's name" in refusal(cluster_nats=server.url)
        said = refusal(**on, cluster_peers="10.0.0.1", cluster_secret="a secret of sixteen")
        assert "cluster_secret, cluster_peers can't be set with cluster_nats" in said
