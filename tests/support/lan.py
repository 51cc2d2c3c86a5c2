"""Whole nodes on machines of their own: `cuebook serve` in network namespaces on one switch."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.netns import Switch, switch
from support.served import ServedNode, eventually
from support.tiny import tiny_model_dir

from events.reader import LogReader

MODEL = "tiny"
SECRET = "the secret of the switch"


class Nodes:
    """Nodes of one cluster; node N has the name ``nN``."""

    def __init__(self) -> None:
        self.nodes: list[ServedNode] = []

    def start(self) -> None:
        for node in self.nodes:
            node.start(wait=False)
        self.together(*self.nodes)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def together(self, *nodes: ServedNode, timeout: float = 60) -> None:
        """Wait until these nodes, and no others, see each other up, with one master and one log."""

        def seen() -> list[tuple[object, ...]]:
            views = [state(node) or {"nodes": {}} for node in nodes]
            return [(*(view.get(name) for name in ("seq", "epoch", "master")), _up(view)) for view in views]

        def agreed() -> bool:
            first, *others = seen()
            return all(other == first for other in others) and first[-1] == sorted(names)

        def explained() -> str:
            return "\n".join([*map(str, seen()), *(node.output() for node in nodes)])

        names = [f"n{self.number(node)}" for node in nodes]
        eventually(agreed, timeout, explained)

    def number(self, node: ServedNode) -> int:
        """The number of the node's machine, from 1."""
        return self.nodes.index(node) + 1

    def node_id(self, node: ServedNode) -> str:
        return (node.home / "node_id").read_text().strip()

    def master(self, seen_by: ServedNode) -> ServedNode:
        leader = seen_by.get("/state")["master"]
        return next(node for node in self.nodes if self.node_id(node) == leader)


class Lan(Nodes):
    """Each on a machine of its own; node N has the address 10.77.0.N."""

    def __init__(self, wires: Switch, root: Path, size: int, **settings: object) -> None:
        super().__init__()
        self.switch = wires
        self._root = root
        self._settings = settings
        for _ in range(size):
            self.add()

    def add(self, **settings: object) -> ServedNode:
        """One more machine, with its node still to be started."""
        namespace = self.switch.host()
        number = len(self.nodes) + 1
        home = self._root / f"n{number}"
        tiny_model_dir(home / "models" / MODEL, endless=True)
        node = ServedNode(
            home,
            namespace=namespace,
            address=self.switch.reach(number),
            **{
                "cluster": "lan",
                "cluster_secret": SECRET,
                "cluster_host": f"10.77.0.{number}",
                "node_name": f"n{number}",
                "threads": 1,
                **self._settings,
                **settings,
            },
        )
        self.nodes.append(node)
        return node


def _up(view: dict[str, Any]) -> list[str]:
    return sorted(node["name"] for node in view["nodes"].values() if node["up"])


def state(node: ServedNode) -> dict[str, Any] | None:
    """The node's state; None where it does not answer."""
    try:
        status, body = node.request("GET", "/state", timeout=5)
    except OSError:
        return None
    return body if status == 200 else None


def decisions(node: ServedNode) -> list[tuple[int, str]]:
    """The node's log, as far as equality goes: every decision's number and command."""
    with LogReader.open(node.log) as reader:
        return [(decision.decision_id, decision.command_id) for decision in reader.decisions()]


def rows(node: ServedNode) -> dict[str, list[tuple[Any, ...]]]:
    """The node's log as it is on the disk: all columns of all rows, their hashes among them."""
    connection = sqlite3.connect(f"file:{node.log}?mode=ro", uri=True)
    try:
        tables = ("decisions", "events")
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in tables}
    finally:
        connection.close()


def one_log(*nodes: ServedNode) -> None:
    """All nodes have the same rows, byte for byte; while the cluster writes, the same beginning."""
    first, *others = [rows(node) for node in nodes]
    for other in others:
        for name, table in first.items():
            common = min(len(table), len(other[name]))
            assert common > 0
            assert table[:common] == other[name][:common], f"{name} differ"


@contextmanager
def lan(root: Path, size: int, *, start: bool = True, **settings: object) -> Iterator[Lan]:
    """A cluster on a switch of its own. Without ``start`` its nodes are still to be started."""
    with switch() as wires:
        made = Lan(wires, root, size, **settings)
        try:
            if start:
                made.start()
            yield made
        finally:
            made.stop()
