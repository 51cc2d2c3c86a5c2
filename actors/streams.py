"""What never enters the log: prompts on their way to a runner, tokens on their way to a client.

Between two nodes both travel on the stream link, numbered by message, so that a loss is noticed: half an
answer must never pass for a whole one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from engines.contract import Prompt
from engines.wire import Admitted, Progress, TaskDone

Said = Admitted | Progress | TaskDone
"""What a runner says of its tasks that a client is to hear. TaskDone: no token comes after it."""


class PromptFor(msgspec.Struct, frozen=True, tag_field="t", tag=True):
    """A prompt for the node that has the runner."""

    request_id: str
    index: int
    prompt: Prompt


class _Parcel(msgspec.Struct, frozen=True, array_like=True):
    """A message between two nodes with its number, from 1, in the sender's count on this link."""

    count: int
    number: int
    body: PromptFor | Admitted | Progress | TaskDone


KEPT_S = 60.0
"""Seconds in which the log must know the task of another node's prompt, and the prompt be taken."""


class PromptShelf:
    """Prompts of accepted requests until their runner takes them. Thread-safe; in memory only.

    Each request puts one prompt a task; it is taken once, by the worker here or for another node.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prompts: dict[tuple[str, int], Prompt] = {}
        self._strange: deque[tuple[float, tuple[str, int]]] = deque()

    def put(self, request_id: str, prompts: Sequence[Prompt]) -> None:
        """Lay the prompts of a request ready, before its tasks are asked for."""
        for index, prompt in enumerate(prompts):
            self.put_one(request_id, index, prompt)

    def put_one(self, request_id: str, index: int, prompt: Prompt) -> None:
        """Lay one task's prompt ready."""
        with self._lock:
            self._prompts[request_id, index] = prompt

    def put_strange(self, message: PromptFor, now: float) -> None:
        """Lay another node's prompt ready at ``now``, monotonic seconds, for `KEPT_S` at least.

        Its task may have ended by now, or end with its instance: then nobody takes it.
        """
        self.put_one(message.request_id, message.index, message.prompt)
        with self._lock:
            self._strange.append((now + KEPT_S, (message.request_id, message.index)))
            while self._strange[0][0] <= now:
                self._prompts.pop(self._strange.popleft()[1], None)

    def take(self, request_id: str, index: int) -> Prompt | None:
        """The prompt of one task, once; None where it is not there (any more)."""
        with self._lock:
            return self._prompts.pop((request_id, index), None)

    def __len__(self) -> int:
        return len(self._prompts)


class TokenHub:
    """Hands what runners say about tasks to whoever serves the clients: here, or on another node.

    `publish` runs on a runner's reader thread, `arrived` on the transport's.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._sink: Callable[[Said], None] | None = None
        self._lost: Callable[[str], None] | None = None
        self._prompts: Callable[[PromptFor], None] | None = None
        self._send: Callable[[str, bytes], bool] | None = None
        self._lock = threading.Lock()
        self._away: dict[str, str] = {}
        self._sent: dict[str, tuple[int, int]] = {}
        self._received: dict[str, tuple[int, int] | None] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_Parcel)

    def attach(self, sink: Callable[[Said], None] | None, lost: Callable[[str], None] | None = None) -> None:
        """Set the one receiver of this node; ``lost`` is told of a node whose messages went missing."""
        self._sink = sink
        self._lost = lost

    def connect(self, send: Callable[[str, bytes], bool] | None) -> None:
        """Set the way to other nodes: ``send(node_id, payload)``, false where there is none."""
        self._send = send

    def on_prompt(self, receive: Callable[[PromptFor], None]) -> None:
        """Set who takes prompts that come from other nodes."""
        self._prompts = receive

    def route(self, task_id: str, api_node: str) -> None:
        """Say where the client of a task is, before its runner can say anything of it."""
        if api_node != self._node_id:
            with self._lock:
                self._away[task_id] = api_node

    def unroute(self, task_id: str) -> None:
        """The task has ended."""
        with self._lock:
            self._away.pop(task_id, None)

    def publish(self, message: Said) -> None:
        """Pass a message on; dropped where nobody serves clients."""
        if not self._away:
            self._here(message)
        elif isinstance(message, Progress):
            self._split(message)
        else:
            api_node = self._away.get(message.task_id, self._node_id)
            self._here(message) if api_node == self._node_id else self.ship(api_node, message)

    def ship(self, node_id: str, body: PromptFor | Said) -> bool:
        """Send to another node. False where there is no way."""
        send = self._send
        if send is None:
            return False
        with self._lock:
            count, number = self._sent.get(node_id, (0, 0))
            self._sent[node_id] = count, number + 1
            return send(node_id, self._encoder.encode(_Parcel(count, number + 1, body)))

    def link_opened(self, node_id: str) -> None:
        """A new link to a node: what was in flight is lost, maybe all it had said, and a new count begins.

        A runner may be quicker than this call, so that a message of the old count is the first on the link:
        the other side must not take the new count for a gap after it.
        """
        with self._lock:
            self._sent[node_id] = self._sent.get(node_id, (0, 0))[0] + 1, 0
        known = node_id in self._received
        self._received[node_id] = None  # nothing yet on this link
        if known and self._lost is not None:
            self._lost(node_id)

    def arrived(self, node_id: str, payload: bytes) -> None:
        """A message of another node."""
        parcel = self._decoder.decode(payload)
        count, number = self._received.get(node_id) or (parcel.count, 0)
        self._received[node_id] = parcel.count, parcel.number
        expected = number + 1 if parcel.count == count else 1
        if parcel.number != expected and self._lost is not None:
            self._lost(node_id)
        if not isinstance(parcel.body, PromptFor):
            self._here(parcel.body)
        elif self._prompts is not None:
            self._prompts(parcel.body)

    def _here(self, message: Said) -> None:
        sink = self._sink
        if sink is not None:
            sink(message)

    def _split(self, message: Progress) -> None:
        """One engine step serves clients of several nodes: each gets its own tasks' text."""
        nodes: dict[str, list[int]] = {}
        for place, chunk in enumerate(message.chunks):
            nodes.setdefault(self._away.get(chunk.task_id, self._node_id), []).append(place)
        for node_id, places in nodes.items():
            part = Progress(chunks=[message.chunks[place] for place in places], prefilling=[], decoding=[])
            if node_id == self._node_id:
                self._here(part)
            else:
                self.ship(node_id, part)
