"""The mesh between machines: processes in network namespaces on a bridge, cut and killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.netns import Switch, switch

SECRET = "the secret of the switch"
SCRIPT = Path(__file__).parent.parent / "support" / "mesh_node.py"
ROOT = SCRIPT.parent.parent.parent


class NodeProcess:
    """A node in a namespace; `events` grows as it prints."""

    def __init__(self, namespace: str, node_id: str, **settings: Any) -> None:
        self.node_id = node_id
        self.events: list[dict[str, Any]] = []
        given = {"node_id": node_id, "secret": SECRET, **settings}
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, sys.executable, str(SCRIPT), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def named(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in list(self.events) if entry["event"] == event]

    def up(self) -> set[str]:
        up: set[str] = set()
        for entry in list(self.events):
            if entry["event"] == "up":
                up.add(entry["node"])
            elif entry["event"] == "down":
                up.discard(entry["node"])
        return up

    def gaps(self) -> dict[str, float]:
        assert self.process.stdin
        before = len(self.named("gaps"))
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        until(lambda: len(self.named("gaps")) > before)
        return self.named("gaps")[-1]["gaps"]

    def kill(self) -> None:
        """``kill -9``. ``ip netns exec`` has become the node: its pid is the node's."""
        self.process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


class Lan:
    """A switch and the nodes on it."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.nodes: list[NodeProcess] = []

    def node(self, namespace: str, node_id: str, **settings: Any) -> NodeProcess:
        node = NodeProcess(namespace, node_id, **settings)
        self.nodes.append(node)
        return node


@pytest.fixture
def lan() -> Iterator[Lan]:
    with switch() as made:
        lan = Lan(made)
        yield lan
        for node in lan.nodes:
            node.close()


def until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {timeout} s"
        time.sleep(0.01)


def all_meet(nodes: list[NodeProcess], timeout: float = 60.0) -> None:
    ids = {node.node_id for node in nodes}
    until(lambda: all(node.up() == ids - {node.node_id} for node in nodes), timeout)


def three(lan: Lan) -> list[NodeProcess]:
    nodes = [lan.node(lan.switch.host(), node_id) for node_id in ("a", "b", "c")]
    all_meet(nodes)
    return nodes


def test_three_find_each_other_by_multicast(lan: Lan) -> None:
    a, b, _ = three(lan)
    assert {entry["host"] for entry in a.named("up")} == {"10.77.0.2", "10.77.0.3"}
    assert b.named("down") == []


def test_three_find_each_other_by_seeds_alone(lan: Lan) -> None:
    hosts = [lan.switch.host() for _ in range(3)]
    settings: dict[str, Any] = {"multicast": False, "seeds": ["10.77.0.1"]}
    all_meet([lan.node(host, node_id, **settings) for host, node_id in zip(hosts, "bca", strict=True)])


def test_a_seed_that_starts_late_is_found(lan: Lan) -> None:
    hosts = [lan.switch.host() for _ in range(2)]
    first = lan.node(hosts[0], "a", multicast=False, seeds=["10.77.0.2:52416"])
    until(lambda: first.named("started"))
    time.sleep(1.5)
    all_meet([first, lan.node(hosts[1], "b", multicast=False)])


def test_two_cluster_names_do_not_mix(lan: Lan) -> None:
    hosts = [lan.switch.host() for _ in range(4)]
    red = [lan.node(host, node_id, cluster="red") for host, node_id in zip(hosts[:2], "ab", strict=True)]
    blue = [lan.node(host, node_id, cluster="blue") for host, node_id in zip(hosts[2:], "cd", strict=True)]
    all_meet(red)
    all_meet(blue)
    time.sleep(1.5)
    assert red[0].up() == {"b"}
    assert blue[0].up() == {"d"}
    assert not [node for node in (*red, *blue) if node.named("refused")]


def test_a_wrong_secret_is_refused_visibly(lan: Lan) -> None:
    hosts = [lan.switch.host() for _ in range(3)]
    a, b = lan.node(hosts[0], "a"), lan.node(hosts[1], "b")
    stranger = lan.node(hosts[2], "c", secret="some other secret")
    all_meet([a, b])
    until(lambda: a.named("refused") and b.named("refused") and stranger.named("refused"))
    assert "doesn't have the secret of cluster 'cuebook'" in b.named("refused")[0]["why"]
    assert b.named("refused")[0]["host"] == "10.77.0.3"
    time.sleep(1.0)
    assert stranger.up() == set()
    assert a.up() == {"b"}
    assert len(b.named("refused")) == 1


def test_another_version_is_refused_visibly(lan: Lan) -> None:
    a = lan.node(lan.switch.host(), "a")
    b = lan.node(lan.switch.host(), "b", version="0.2.0")
    until(lambda: a.named("refused") and b.named("refused"))
    assert "run the same version on both" in a.named("refused")[0]["why"]
    assert a.up() == b.up() == set()


def test_kill_9_is_noticed_by_the_closed_connection(lan: Lan) -> None:
    a, b, c = three(lan)
    c.kill()
    until(lambda: a.named("down") and b.named("down"))
    assert not [node for node in (a, b) if "nothing was heard" in node.named("down")[0]["why"]]
    again = lan.node(lan.switch.hosts[2], "c")
    all_meet([a, b, again])


def test_a_cut_is_noticed_within_seconds_and_heals(lan: Lan) -> None:
    a, b, c = three(lan)
    lan.switch.cut(3)
    at = time.monotonic()
    until(lambda: a.named("down") and b.named("down") and len(c.named("down")) == 2)
    noticed = max(node.named("down")[-1]["at"] for node in (a, b, c)) - at
    assert noticed < 6.0
    assert "nothing was heard" in a.named("down")[0]["why"]
    time.sleep(2.0)
    lan.switch.heal(3)
    all_meet([a, b, c])


def test_an_interface_that_appears_later_is_used(lan: Lan) -> None:
    a = lan.node(lan.switch.host(), "a")
    b = lan.node(lan.switch.host(plugged=False), "b")
    until(lambda: b.named("started"))
    time.sleep(1.0)
    assert b.up() == set()
    lan.switch.plug(2)
    all_meet([a, b])


def test_ipv6_link_local_is_enough(lan: Lan) -> None:
    a = lan.node(lan.switch.host(ipv4=False), "a")
    b = lan.node(lan.switch.host(ipv4=False), "b")
    all_meet([a, b])
    assert a.named("up")[0]["host"].startswith("fe80::")
    assert a.named("up")[0]["host"].endswith("%eth0")


def while_a_third_vanishes(lan: Lan, trials: int) -> list[float]:
    a, b, c = three(lan)
    largest: list[float] = []
    for _ in range(trials):
        time.sleep(0.3)
        a.gaps(), b.gaps()
        lan.switch.cut(3)
        until(lambda: "c" not in a.up() and "c" not in b.up())
        time.sleep(0.5)
        lan.switch.heal(3)
        all_meet([a, b, c])
        largest.append(max(a.gaps()["b"], b.gaps()["a"]))
        assert "b" in a.up()
    return largest


def test_two_keep_hearing_each_other_while_a_third_vanishes(lan: Lan) -> None:
    largest = while_a_third_vanishes(lan, 3)
    assert max(largest) < 1.0, largest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_keep_hearing_each_other_in_twenty_trials(lan: Lan) -> None:
    largest = while_a_third_vanishes(lan, 20)
    print(f"largest gaps: median {sorted(largest)[10]:.3f} s, maximum {max(largest):.3f} s")
    assert max(largest) < 1.0, largest
