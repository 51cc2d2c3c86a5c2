"""The short form of what the other tests here show at length: two nodes, and then one."""

from __future__ import annotations

from pathlib import Path

from support.chats import Stream, chat_body
from support.lan import MODEL, one_log
from support.loopback import loopback


def test_two_nodes_are_one_cluster_and_one_goes_on_alone(tmp_path: Path) -> None:
    with loopback(tmp_path, 2) as net:
        master = net.master(net.nodes[0])
        other = next(node for node in net.nodes if node is not master)
        instance_id = master.place(MODEL, context=2048, batch=2, node_id=net.node_id(other))
        master.ready(instance_id)
        runners = other.runner_pids()
        for node in net.nodes:
            status, answer = node.request("POST", "/v1/chat/completions", chat_body(instance_id, 20))
            assert status == 200, answer
        one_log(*net.nodes)

        stream = Stream(other, instance_id, 1500).begun()
        master.kill()
        stream.join(60)
        assert stream.outcome == "finished"
        net.together(other)
        assert net.master(other) is other
        assert other.runner_pids() == runners

        master.start(wait=False)
        net.together(*net.nodes)
        assert net.master(master) is other
        status, answer = master.request("POST", "/v1/chat/completions", chat_body(instance_id, 20))
        assert status == 200, answer
        one_log(*net.nodes)
