"""Three nodes without work write nothing and say nothing but that they are there."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.lan import MODEL, Lan, lan, one_log, state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

IDLE_S = 60.0
QUIET_BYTES_S = 6_000
"""A node's liveliness: to each of two others two links with a heart-beat and its echo every half second, one
word of election a second, all within TLS and TCP, and a beacon for each address family a second."""
OUTSIDE = {"NodeResourcesChanged", "LinksChanged"}
"""Events of what the machine does beside the cluster: its free memory, and how long its packets take."""


def files(home: Path) -> dict[str, tuple[int, int]]:
    """Size and time of the last write of everything under a home.

    Without SQLite's ``-shm``, which its readers write, and the captured output.
    """
    found = (path for path in home.rglob("*") if path.is_file())
    return {
        str(path.relative_to(home)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in found
        if not path.name.endswith("-shm") and path.name != "output.txt"
    }


def sent(net: Lan) -> list[int]:
    """Bytes that each machine has sent into the switch."""
    counts: list[int] = []
    for name in net.switch.hosts:
        shown = subprocess.run(
            ["ip", "-n", name, "-s", "-j", "link", "show", "eth0"], capture_output=True, check=True
        )
        counts.append(json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"])
    return counts


def came_from_outside(net: Lan, after: int) -> bool:
    """Whether the log grew, and only by what the machine's other work caused."""
    found = net.nodes[0].get(f"/events?after={after}&limit=1000")["events"]
    kinds = {each["event"]["type"] for each in found}
    assert kinds <= OUTSIDE, found
    return bool(kinds)


def watch(net: Lan) -> tuple[list[float], dict[str, Any]]:
    """Bytes a second of each node, and the files that changed, over `IDLE_S`."""
    before, counts, began = [files(node.home) for node in net.nodes], sent(net), time.monotonic()
    time.sleep(IDLE_S)
    seconds = time.monotonic() - began
    rates = [(now - then) / seconds for now, then in zip(sent(net), counts, strict=True)]
    changed = {
        f"{node.home.name}/{name}": new
        for node, old in zip(net.nodes, before, strict=True)
        for name, new in files(node.home).items()
        if old.get(name) != new
    }
    return rates, changed


def test_an_idle_cluster_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lan(tmp_path, 3) as net:
        net.nodes[0].ready(net.nodes[0].place(MODEL, context=512, batch=1))
        time.sleep(10)  # the first readings of links and memory are in
        for _ in range(5):
            view = state(net.nodes[0])
            assert view is not None
            rates, changed = watch(net)
            if not came_from_outside(net, view["seq"]):
                break
        else:
            pytest.skip("the machine was never quiet: its own memory and latencies kept changing")
        assert not changed, changed
        with capsys.disabled():
            print(f"\nan idle node sends {', '.join(f'{rate:,.0f}' for rate in rates)} bytes a second")
        assert max(rates) < QUIET_BYTES_S, rates
        one_log(*net.nodes)
