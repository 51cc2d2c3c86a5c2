"""What the tests of transports share: handlers that write down what they are told and check its order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from actors.deferred import Deferred
from actors.net.transport import Peer


def peer(node_id: str, **fields: Any) -> Peer:
    known: dict[str, Any] = {
        "name": f"name-of-{node_id}",
        "version": "0.1.0",
        "api_url": f"http://{node_id}:1",
    }
    return Peer(node_id=node_id, **(known | fields))


def eventually(condition: Callable[[], object], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {timeout} s"
        time.sleep(0.005)


class Recorder:
    """Handlers of one node. What breaks the interface's promises is in `wrong`."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.up: set[str] = set()
        self.wrong: list[str] = []
        self.refusals: list[tuple[str, str]] = []
        self.heard: dict[tuple[str, str], list[bytes]] = {}
        self.stalled = threading.Event()
        self.stalled.set()
        self.on_up: Callable[[Peer], object] = lambda peer: None
        self.answer: Callable[[str, bytes], Deferred[bytes]] = echo
        self._threads: set[int] = set()

    def peer_up(self, peer: Peer) -> None:
        self._note("up", peer.node_id)
        if peer.node_id in self.up:
            self.wrong.append(f"{peer.node_id} came up twice")
        self.up.add(peer.node_id)
        self.on_up(peer)

    def peer_down(self, node_id: str, why: str) -> None:
        self._note("down", node_id, why)
        if node_id not in self.up:
            self.wrong.append(f"{node_id} went down without being up")
        self.up.discard(node_id)

    def stream_lost(self, node_id: str, why: str) -> None:
        self._note("stream lost", node_id, why)
        if node_id not in self.up:
            self.wrong.append(f"the stream of {node_id} was lost while it was down")

    def message(self, node_id: str, topic: str, payload: bytes) -> None:
        self._note("message", node_id)
        if node_id not in self.up:
            self.wrong.append(f"a message came from {node_id}, which is down")
        self.heard.setdefault((node_id, topic), []).append(payload)
        self.stalled.wait(60)

    def request(self, node_id: str, topic: str, payload: bytes) -> Deferred[bytes]:
        self._note("request", node_id)
        if node_id not in self.up:
            self.wrong.append(f"a request came from {node_id}, which is down")
        return self.answer(topic, payload)

    def refused(self, host: str, why: str) -> None:
        self.refusals.append((host, why))

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.log if entry[0] in kinds]

    def _note(self, *entry: str) -> None:
        self.log.append(entry)
        self._threads.add(threading.get_ident())
        if len(self._threads) > 1:
            self.wrong.append("handlers were called on several threads")


def echo(topic: str, payload: bytes) -> Deferred[bytes]:
    answer: Deferred[bytes] = Deferred()
    answer.resolve(topic.encode() + b":" + payload)
    return answer
