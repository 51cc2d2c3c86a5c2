"""What the doctor says: from observations, on this machine, and between machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.authority import Authority
from support.netns import switch
from support.transports import Recorder, eventually, peer

from actors.net.beacon import Beacon
from actors.net.doctor import Finding, diagnose, findings
from actors.net.greeting import tag_of
from actors.net.interfaces import Interface
from actors.net.mesh import Mesh
from actors.net.mesh_settings import MeshSettings
from actors.net.observed import Answer, Observed

SECRET = "a secret of good length"
ETH0 = Interface("eth0", 2, "10.0.0.1", 2)  # pyright: ignore[reportArgumentType]
LO = Interface("lo", 1, "127.0.0.1", 2)  # pyright: ignore[reportArgumentType]
ME = peer("me")


def observed(**fields: Any) -> Observed:
    known: dict[str, Any] = {
        "settings": MeshSettings(secret=SECRET),
        "interfaces": [LO, ETH0],
        "port": "this node",
        "looped": {"eth0 (10.0.0.1)": ""},
        "beacons": [("10.0.0.2", Beacon(tag_of("cuebook"), "b", 52416))],
        "answers": [Answer(host="10.0.0.2", port=52416, peer=peer("b"))],
    }
    return Observed(**(known | fields))


def problems(found: list[Finding]) -> list[str]:
    return [finding.text for finding in found if finding.level == "problem"]


def notes(found: list[Finding]) -> list[str]:
    return [finding.text for finding in found if finding.level == "note"]


def test_a_healthy_network_has_no_problem_and_no_note() -> None:
    found = findings(observed(), ME)
    assert problems(found) == notes(found) == []
    assert {finding.topic for finding in found} == {"security", "interfaces", "port", "multicast", "nodes"}
    assert found[-1].text == "name-of-b (b) at 10.0.0.2 port 52416 accepts this node; version 0.1.0."


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"settings": MeshSettings()}, "No secret is set, so the mesh listens on loopback only"),
        ({"interfaces": [LO]}, "No network interface but loopback has an address"),
        (
            {"settings": MeshSettings(secret=SECRET, bind="10.9.9.9")},
            "set to listen on 10.9.9.9, which no interface has. There are 10.0.0.1 (eth0)",
        ),
        ({"port": "The mesh port 52416 is in use."}, "The mesh port 52416 is in use."),
        ({"looped": {"eth0 (10.0.0.1)": "blocked."}}, "Beacons don't work on eth0 (10.0.0.1): blocked."),
        (
            {"answers": [Answer(host="10.0.0.2", port=52416, why="timed out")]},
            "Beacons arrive from 10.0.0.2 port 52416, but the port can't be reached (timed out): a firewall",
        ),
        (
            {"answers": [Answer(host="10.0.0.9", port=52416, why="refused")]},
            "Nothing answers at 10.0.0.9 port 52416 (refused): check that the node runs",
        ),
        (
            {"answers": [Answer(host="10.0.0.2", port=52416, refused=True, why="another version")]},
            "At 10.0.0.2 port 52416: another version",
        ),
        (
            {"answers": [Answer(host="10.0.0.2", port=52416, peer=peer("me"))]},
            "name-of-me at 10.0.0.2 port 52416 has this node's own id (me): give each node a home",
        ),
    ],
)
def test_each_problem_has_its_sentence(fields: dict[str, Any], sentence: str) -> None:
    found = problems(findings(observed(**fields), ME))
    assert len(found) == 1
    assert sentence in found[0]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"port": "free"}, "this node isn't running"),
        ({"settings": MeshSettings(secret=SECRET, multicast=False), "looped": {}}, "Multicast is off"),
        ({"beacons": []}, "No beacon of another node of cluster 'cuebook' was heard"),
        (
            {
                "beacons": [
                    ("10.0.0.2", Beacon(tag_of("cuebook"), "b", 1)),
                    ("10.0.0.7", Beacon(b"x" * 8, "c", 1)),
                ]
            },
            "Nodes of other clusters announce themselves at 10.0.0.7",
        ),
    ],
)
def test_what_may_be_meant_so_is_a_note(fields: dict[str, Any], sentence: str) -> None:
    found = findings(observed(**fields), ME)
    assert problems(found) == []
    assert [note for note in notes(found) if sentence in note]


def test_own_beacons_are_not_another_nodes() -> None:
    beacons = [("10.0.0.1", Beacon(tag_of("cuebook"), "me", 52416))]
    assert "No beacon of another node" in notes(findings(observed(beacons=beacons), ME))[0]


def test_on_this_machine_beside_running_nodes() -> None:
    settings = MeshSettings(
        cluster=uuid.uuid4().hex, secret=SECRET, bind="127.0.0.1", port=0, multicast=False
    )
    me, other = Mesh(settings), Mesh(settings)
    me.start(peer("me"), Recorder())
    recorder = Recorder()
    other.start(peer("other"), recorder)
    try:
        seeds = (f"127.0.0.1:{other.port}", "127.0.0.1:1")
        mine = MeshSettings(
            cluster=settings.cluster,
            secret=SECRET,
            bind="127.0.0.1",
            port=me.port,
            multicast=False,
            seeds=seeds,
        )
        found = diagnose(mine, peer("me", port=me.port), listen_s=0)
        texts = "\n".join(finding.text for finding in found)
        assert f"This node answers on the mesh port {me.port}." in texts
        assert "name-of-other (other) at" in texts
        assert "Nothing answers at 127.0.0.1 port 1 " in texts

        wrong = MeshSettings(
            cluster=settings.cluster,
            secret=SECRET + "!",
            bind="127.0.0.1",
            port=0,
            multicast=False,
            seeds=seeds,
        )
        found = diagnose(wrong, peer("me"), listen_s=0)
        assert any("doesn't have the secret" in text for text in problems(found))
        eventually(lambda: recorder.refusals)
    finally:
        me.stop()
        other.stop()


@pytest.mark.parametrize("certified", [False, True])
def test_a_list_of_peers_with_the_node_itself_is_fine(tmp_path: Path, certified: bool) -> None:
    proof = {"certificates": Authority(tmp_path, "ours").sign("me")} if certified else {"secret": SECRET}
    known: dict[str, Any] = {"cluster": uuid.uuid4().hex, "bind": "127.0.0.1", **proof}
    settings = MeshSettings(**known, port=0, multicast=False)
    me, namesake, recorder = Mesh(settings), Mesh(settings), Recorder()
    me.start(peer("me"), recorder)
    namesake.start(peer("me"), recorder)
    try:
        seeds = f"127.0.0.1:{me.port}", f"127.0.0.1:{namesake.port}"
        mine = MeshSettings(**known, port=me.port, multicast=False, seeds=seeds)
        (problem,) = problems(diagnose(mine, peer("me", port=me.port), listen_s=0))
        assert f"127.0.0.1 port {namesake.port} has this node's own id" in problem
        assert recorder.refusals == []
    finally:
        me.stop()
        namesake.stop()


def test_between_machines_by_multicast() -> None:
    root = Path(__file__).parents[2]
    script = (
        "import json, sys, msgspec\n"
        "from actors.net.doctor import diagnose\n"
        "from actors.net.mesh_settings import MeshSettings\n"
        "from support.transports import peer\n"
        "found = diagnose(msgspec.convert(json.loads(sys.argv[1]), MeshSettings), peer('me'))\n"
        "print(msgspec.json.encode(found).decode())\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}

    def run(namespace: str, **settings: Any) -> list[Finding]:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-c", script]
        done = subprocess.run(
            [*command, json.dumps({"secret": SECRET, **settings})], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return [Finding(**fields) for fields in json.loads(done.stdout)]

    with switch() as wires:
        here, there = wires.host(), wires.host()
        settings = json.dumps({"node_id": "b", "secret": SECRET})
        node = subprocess.Popen(
            ["ip", "netns", "exec", there, sys.executable, root / "tests/support/mesh_node.py", settings],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert node.stdout
            assert b"started" in node.stdout.readline()
            found = run(here)
            assert problems(found) == []
            texts = "\n".join(finding.text for finding in found)
            assert "A beacon sent on eth0 (10.77.0.1) came back." in texts
            assert "b (b) at 10.77.0.2 port 52416 accepts this node" in texts
            assert "other clusters announce themselves at 10.77.0.2" in "\n".join(
                notes(run(here, cluster="x"))
            )
        finally:
            node.kill()
            node.communicate()
