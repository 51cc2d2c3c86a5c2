"""`cuebook doctor --network` says why two nodes don't see each other; `cuebook status` shows a cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.command import PROGRAM, Cuebook, environment
from support.lan import SECRET, Lan, lan
from support.served import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def doctor(net: Lan, home: Path, **settings: object) -> tuple[int, dict[str, list[str]]]:
    """The exit code and the sentences by level, as the doctor says them on the last machine."""
    given = {"cluster": "lan", "cluster_secret": SECRET, "cluster_host": f"10.77.0.{len(net.switch.hosts)}"}
    done = subprocess.run(
        ["ip", "netns", "exec", net.switch.hosts[-1], *PROGRAM, "doctor", "--network", "--json"],
        env=environment(home=home, **(given | settings)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    levels = ("ok", "warn", "fail")
    return done.returncode, {
        level: [each["text"] for each in findings if each["level"] == level] for level in levels
    }


def some(sentences: list[str], *words: str) -> bool:
    """Whether one of the sentences has all the words."""
    return any(all(word in sentence for word in words) for sentence in sentences)


def test_the_doctor_names_the_cause(tmp_path: Path) -> None:
    with lan(tmp_path, 1) as net:
        net.switch.host()
        home = tmp_path / "patient"

        code, found = doctor(net, home)
        assert code == 0, found
        assert some(found["ok"], "n1", "10.77.0.1", "accepts this node")
        assert not home.exists(), "the doctor changed something"

        code, found = doctor(net, home, cluster_secret="the secret of another place")
        assert code == 1
        assert some(found["fail"], "10.77.0.1", "secret")

        code, found = doctor(net, home, cluster="other", cluster_peers="10.77.0.1")
        assert code == 1
        assert some(found["fail"], "10.77.0.1", "cluster name")
        _, found = doctor(net, home, cluster="other")
        assert some(found["warn"], "10.77.0.1", "cluster name")

        _, found = doctor(net, home, cluster_multicast="false")
        assert some(found["warn"], "Multicast is off")

        code, found = doctor(net, home, cluster_host="10.77.0.99")
        assert code == 1
        assert some(found["fail"], "10.77.0.99", "no interface")

        code, found = doctor(net, home, cluster="")
        assert code == 1
        assert some(found["fail"], "no cluster is named")

        net.nodes[0].stop()
        code, found = doctor(net, home, cluster_peers="10.77.0.1")
        assert code == 1
        assert some(found["fail"], "Nothing answers at 10.77.0.1", "firewall")


def test_the_doctor_beside_a_running_node(tmp_path: Path) -> None:
    with lan(tmp_path, 2) as net:
        code, found = doctor(net, net.nodes[1].home)
        assert code == 0, found
        assert some(found["ok"], "This node answers on the mesh port")
        assert not net.nodes[0].events("PeerRefused", "NodeStopped")
        net.together(*net.nodes)


def test_status_shows_who_leads_and_the_ways(tmp_path: Path) -> None:
    with lan(tmp_path, 2) as net:
        eventually(lambda: len(net.nodes[0].get("/state")["links"]) == 2, 30)
        leader = net.master(net.nodes[0])
        for node in net.nodes:
            shown = Cuebook(node.home, node.port)("status", host=node.url.split("/")[2].split(":")[0])
            assert shown.code == 0, shown.err
            head, *lines = shown.out.splitlines()
            assert f"epoch 1, master n{net.number(leader)} ({net.node_id(leader)})" in head
            assert sum("up, leads" in line for line in lines) == 1
            assert "Links" in lines
            assert sum(" ms" in line and "n1" in line and "n2" in line for line in lines) == 2
