"""A whole node in a process that answers lines of JSON: has commands decided, tells when it learned what.

``python -m support.tapped_node SETTINGS``. In place of the HTTP API it has a tap on the committed stream.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from support.line_process import serve

from actors.actor import Actor
from actors.deferred import Deferred
from actors.gateway import Gateway
from actors.node import Node
from actors.settings import load_settings
from events import commands as cmd
from events.ids import fresh
from events.record import Committed
from projections.snapshot import catch_up
from projections.state import ClusterState


class Tap(Actor):
    """Notes when this node learned of each command's decision, in the machine's monotonic time."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway
        self.learned: dict[str, float] = {}

    def started(self) -> None:
        self._subscription = self._gateway._feed.subscribe(0, self._learn, lambda _: None)

    def stopping(self) -> None:
        self._subscription.close()

    def _learn(self, committed: Sequence[Committed]) -> None:
        now = time.monotonic()
        for decision in committed:
            self.learned[decision.command_id] = now

    def ask(self, command: cmd.Report) -> Deferred[Any]:
        return self._gateway._master.ask_future(command)

    def state(self) -> ClusterState:
        with self._gateway.reader() as reader:
            return catch_up(ClusterState(), reader)


class Tapped:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._node = Node(load_settings({"engines": "mlx", **settings}, environ={}), self._make)
        self._node.start()

    def _make(self, gateway: Gateway) -> Tap:
        self._tap = Tap(gateway)
        return self._tap

    def answer(self, question: Any) -> object:
        match question:
            case ["view"]:
                state = self._tap.state()
                up = sum(node.up for node in state.nodes.values())
                return {"up": up, "leads": state.master == self._node.node_id, "seq": state.seq}
            case ["decide", count, window]:
                return self._decide(count, window)
            case ["learned", command_ids]:
                return [self._tap.learned.get(command_id) for command_id in command_ids]
        raise ValueError(question)

    def _decide(self, count: int, window: int) -> dict[str, Any]:
        """Have ``count`` small commands decided, ``window`` at a time; the seconds in all and of each."""
        room, seconds, began = threading.Semaphore(window), dict[str, float](), time.monotonic()

        def ask(number: int) -> None:
            reason = f"try {number}"
            command = cmd.ReportRefusedPeer(
                command_id=fresh("bench"), origin=self._node.node_id, host="10.0.0.1", reason=reason
            )
            asked = time.monotonic()

            def answered(done: Deferred[Any]) -> None:
                done.get()
                seconds[command.command_id] = time.monotonic() - asked
                room.release()

            self._tap.ask(command).add_done_callback(answered)

        for number in range(count):
            room.acquire()
            ask(number)
        for _ in range(window):
            room.acquire()
        return {"seconds": time.monotonic() - began, "each": seconds}


if __name__ == "__main__":
    serve(Tapped(json.loads(sys.argv[1])).answer)
