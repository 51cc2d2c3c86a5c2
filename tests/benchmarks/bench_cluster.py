"""What a cluster costs: commands over 1, 3 and 5 nodes, tokens through another node, and recovery.

Run ``python tests/benchmarks/bench_cluster.py [commands|tokens|recovery] [--runs N]``. All nodes are
processes on this machine and meet over loopback, with a secret, hence TLS: so they share its cores, and no
real network is in between. A death is told at once by the closed connection; a silent one takes 2 s more.

- *commands*: whole nodes without HTTP. A small command that makes one event is decided: at the node that
  leads, or at one that follows and passes it on. The time *to apply* is from the moment at which the leader
  has published a commit to that at which another node has published it, with it on its own disk.
- *tokens*: one stream of the tiny model through a node that has the runner and one that has not, in turns.
- *recovery*: ``kill -9``, then the time until a command is answered again, by another node; or until the
  instance of a killed node is ready elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.chats import chat_body
from support.lan import MODEL
from support.line_process import LineProcess
from support.loopback import Loopback, loopback
from support.served import ServedNode, eventually, free_port

SIZES = (1, 3, 5)
RUNS = 20
BURST, WINDOW, SINGLE = 500, 64, 50
TOKENS = 600
SECRET = "the secret of the benchmark"


def row(name: str, values: Sequence[float], unit: str) -> None:
    """The distribution of one measure."""
    found = sorted(values)
    tenths = statistics.quantiles(found, n=10, method="inclusive") if len(found) > 1 else found
    cells = [("min", found[0]), ("median", statistics.median(found)), ("p90", tenths[-1]), ("max", found[-1])]
    shown = "  ".join(f"{label} {value:10,.2f}" for label, value in cells)
    print(f"  {name:<46} {shown} {unit}  (n = {len(found)})", flush=True)


# Commands


def tapped(stack: ExitStack, root: Path, size: int) -> list[LineProcess]:
    ports = [free_port() for _ in range(size)]
    cluster = {
        "cluster": root.name,
        "cluster_secret": SECRET,
        "cluster_host": "127.0.0.1",
        "cluster_multicast": False,
        "cluster_peers": ",".join(f"127.0.0.1:{port}" for port in ports),
        "log_level": "warning",
    }
    nodes = [
        stack.enter_context(
            LineProcess("support.tapped_node", settings_of(root / f"{number}", port, cluster))
        )
        for number, port in enumerate(ports)
    ]
    eventually(lambda: all(node.ask(["view"])["up"] == size for node in nodes), 120)
    return sorted(nodes, key=lambda node: not node.ask(["view"])["leads"])


def settings_of(home: Path, port: int, cluster: dict[str, object]) -> str:
    return json.dumps({"home": str(home), "cluster_port": port, "offline": True, **cluster})


def commands(runs: int) -> None:
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        clusters = {size: tapped(stack, Path(home, f"of{size}"), size) for size in SIZES}
        rates: dict[tuple[int, str], list[float]] = {}
        waits: dict[tuple[int, str], list[float]] = {}
        applied: dict[int, list[float]] = {}
        for _ in range(runs):
            for size, nodes in clusters.items():
                for name, node in [("leader", nodes[0]), *([("follower", nodes[1])] if size > 1 else [])]:
                    burst = node.ask(["decide", BURST, WINDOW])
                    rates.setdefault((size, name), []).append(BURST / burst["seconds"])
                    lags(nodes, list(burst["each"]))  # what comes next is measured with nothing in the way
                    single = node.ask(["decide", SINGLE, 1])["each"]
                    waits.setdefault((size, name), []).extend(each * 1e3 for each in single.values())
                    applied.setdefault(size, []).extend(lags(nodes, list(single)))
        for (size, name), values in rates.items():
            row(f"{size} nodes, at the {name}, {WINDOW} at a time", values, "commands/s")
        for (size, name), values in waits.items():
            row(f"{size} nodes, at the {name}, one at a time", values, "ms to the answer")
        for size, values in applied.items():
            if size > 1:
                row(f"{size} nodes, from commit to apply", values, "ms")


def lags(nodes: list[LineProcess], command_ids: list[str]) -> list[float]:
    """Milliseconds from the leader's publication of each command's decision to that of each follower."""
    leader, *followers = nodes
    eventually(lambda: all(None not in node.ask(["learned", command_ids]) for node in followers))
    led = leader.ask(["learned", command_ids])
    told = [node.ask(["learned", command_ids]) for node in followers]
    return [(there - here) * 1e3 for times in told for here, there in zip(led, times, strict=True)]


# Tokens


def tokens(runs: int) -> None:
    with tempfile.TemporaryDirectory() as home, secured(Path(home), 3) as net:
        instance_id = pinned(net, net.nodes[1])
        for node in net.nodes[:2]:
            stream(node, instance_id)
        remote = [stream(net.nodes[0], instance_id)]
        local = [stream(net.nodes[1], instance_id)]
        for _ in range(runs - 1):
            remote.append(stream(net.nodes[0], instance_id))
            local.append(stream(net.nodes[1], instance_id))
        for name, measured in (("through the runner's own node", local), ("through another node", remote)):
            row(f"tokens {name}", [rate for rate, _ in measured], "tokens/s")
            row(f"first token {name}", [first * 1e3 for _, first in measured], "ms")
        pairs = list(zip(remote, local, strict=True))
        row("rate through another node by the local one", [there[0] / here[0] for there, here in pairs], "")


def stream(node: ServedNode, instance_id: str) -> tuple[float, float]:
    """Tokens a second from the first one on, and seconds to the first one."""
    began, first = time.perf_counter(), 0.0
    for line in node.stream(chat_body(instance_id, TOKENS)):
        first = first or time.perf_counter() - began
        last = line
    assert last == "[DONE]"
    return TOKENS / (time.perf_counter() - began - first), first


# Recovery


def recovery(runs: int) -> None:
    with tempfile.TemporaryDirectory() as home, secured(Path(home), 3) as net:
        measured = [after_the_masters_death(net) for _ in range(runs)]
        row("master killed, next command answered", measured, "s")
        measured = [after_a_workers_death(net) for _ in range(runs)]
        row("worker killed, its instance ready elsewhere", measured, "s")


def after_the_masters_death(net: Loopback) -> float:
    master = net.master(net.nodes[0])
    other = next(node for node in net.nodes if node is not master)
    return killed(net, master, lambda: other.request("POST", "/instance/none/retry")[0] == 404)


def after_a_workers_death(net: Loopback) -> float:
    first = net.nodes[0]
    instance_id = first.place(MODEL, context=512, batch=1)
    first.ready(instance_id)
    seat = first.get(f"/instance/{instance_id}")["placement"]["ranks"][0]["node_id"]
    carrier = next(node for node in net.nodes if net.node_id(node) == seat)
    other = next(node for node in net.nodes if node is not carrier)

    def ready_elsewhere() -> bool:
        instance = other.get(f"/state/instances/{instance_id}")
        placement = instance["placement"]
        return instance["status"] == "ready" and placement["ranks"][0]["node_id"] != seat

    try:
        return killed(net, carrier, ready_elsewhere)
    finally:
        other.request("DELETE", f"/instance/{instance_id}")


def killed(net: Loopback, node: ServedNode, recovered: Callable[[], bool]) -> float:
    """Seconds from the kill of a node until ``recovered``; then the node is started again."""
    node.kill()
    began = time.perf_counter()
    while not recovered():
        time.sleep(0.01)
    seconds = time.perf_counter() - began
    node.start(wait=False)
    net.together(*net.nodes)
    return seconds


def secured(root: Path, size: int) -> AbstractContextManager[Loopback]:
    return loopback(root, size, cluster_secret=SECRET, cluster_host="127.0.0.1")


def pinned(net: Loopback, node: ServedNode) -> str:
    instance_id = net.nodes[0].place(MODEL, context=1024, batch=1, node_id=net.node_id(node))
    net.nodes[0].ready(instance_id)
    return instance_id


PARTS = {"commands": commands, "tokens": tokens, "recovery": recovery}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all where none is named")
    parser.add_argument("--runs", type=int, default=RUNS)
    args = parser.parse_args()
    for name in args.parts or PARTS:
        print(f"{name}; load average {os.getloadavg()[0]:.1f}", flush=True)
        PARTS[name](args.runs)


if __name__ == "__main__":
    main()
