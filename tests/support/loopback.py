"""Whole nodes of one cluster on this machine: processes that meet over loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.lan import MODEL, Nodes
from support.served import ServedNode, free_port
from support.tiny import tiny_model_dir


class Loopback(Nodes):
    """Each has its own port and knows those of all others."""

    def __init__(self, root: Path, size: int, **settings: object) -> None:
        super().__init__()
        ports = [free_port() for _ in range(size)]
        peers = ",".join(f"127.0.0.1:{port}" for port in ports)
        common = {"cluster": root.name, "cluster_peers": peers, "cluster_multicast": False, "threads": 1}
        for number, port in enumerate(ports, 1):
            home = root / f"n{number}"
            tiny_model_dir(home / "models" / MODEL, endless=True)
            given = {**common, "cluster_port": port, "node_name": f"n{number}", **settings}
            self.nodes.append(ServedNode(home, **given))


@contextmanager
def loopback(root: Path, size: int, **settings: object) -> Iterator[Loopback]:
    made = Loopback(root, size, **settings)
    try:
        made.start()
        yield made
    finally:
        made.stop()
