"""A node of the mesh as a process of its own: ``python mesh_node.py SETTINGS-JSON``.

Prints a line of JSON for each thing it is told, with the machine's monotonic time. Sends 100 messages a
second to all; a line on its input makes it print the largest gap in what it heard from each peer since the
last such line.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import msgspec

from actors.deferred import Deferred
from actors.net.mesh import Mesh
from actors.net.mesh_settings import MeshSettings
from actors.net.transport import Peer


class Printer:
    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self.gaps: dict[str, float] = {}
        self.lock = threading.Lock()

    def say(self, event: str, **fields: Any) -> None:
        with self.lock:
            print(json.dumps({"at": time.monotonic(), "event": event, **fields}), flush=True)

    def peer_up(self, peer: Peer) -> None:
        self.last[peer.node_id] = time.monotonic()
        self.say("up", node=peer.node_id, host=peer.host, port=peer.port)

    def peer_down(self, node_id: str, why: str) -> None:
        self.say("down", node=node_id, why=why)

    def stream_lost(self, node_id: str, why: str) -> None:
        pass

    def message(self, node_id: str, topic: str, payload: bytes) -> None:
        now = time.monotonic()
        self.gaps[node_id] = max(self.gaps.get(node_id, 0.0), now - self.last[node_id])
        self.last[node_id] = now

    def request(self, node_id: str, topic: str, payload: bytes) -> Deferred[bytes]:
        raise NotImplementedError

    def refused(self, host: str, why: str) -> None:
        self.say("refused", host=host, why=why)

    def report_gaps(self) -> None:
        now = time.monotonic()
        gaps = {node: max(self.gaps.get(node, 0.0), now - last) for node, last in self.last.items()}
        self.gaps.clear()
        self.say("gaps", gaps=gaps)


def main() -> None:
    given = json.loads(sys.argv[1])
    node_id, version = given.pop("node_id"), given.pop("version", "0.1.0")
    mesh, printer = Mesh(msgspec.convert(given, MeshSettings)), Printer()
    mesh.start(Peer(node_id=node_id, name=node_id, version=version, api_url=""), printer)
    printer.say("started", port=mesh.port)
    threading.Thread(target=chatter, args=(mesh,), daemon=True).start()
    for _ in sys.stdin:
        printer.report_gaps()
    mesh.stop()


def chatter(mesh: Mesh) -> None:
    while True:
        mesh.broadcast("log", bytes(100))
        time.sleep(0.01)


main()
