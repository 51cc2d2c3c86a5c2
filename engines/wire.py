"""Messages between a supervisor and its runner process, and their framing on a stream socket.

A frame is a 4-byte big-endian length and a MessagePack body. The supervisor sends `ToRunner`, the runner
sends `FromRunner`; one message per frame, in order. The runner ends when its socket closes: it never
outlives its supervisor.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import msgspec

from engines.contract import ExpertShard, GroupSpec
from events.experts import LayerMoves, StagedSlot
from events.status import RunnerStatus
from events.values import Cause, Dtype, FinishReason, ModelCard, Sampling, TaskKind, Timings, Usage


class _Message(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="t", tag=True):
    """Base of all messages."""


class Load(_Message, frozen=True):
    """Load this shard (Idle or Connected becomes Loading, then Loaded)."""

    card: ModelCard
    path: str
    engine: str
    dtype: Dtype
    context: int
    batch: int
    start_layer: int
    end_layer: int
    prefill_chunk: int
    device_id: str = "cpu:0"
    experts: ExpertShard | None = None


class Connect(_Message, frozen=True):
    """Join the group (Idle becomes Connecting, then Connected). Not sent to a world of one."""

    engine: str
    group: GroupSpec


class WarmUp(_Message, frozen=True):
    """Run a first forward pass (Loaded becomes WarmingUp, then Ready). In a group, rank 0 comes last."""


class Generate(_Message, frozen=True):
    """Generate for a task. The prompt fields are those of `engines.contract.Prompt`.

    Of a group only rank 0 takes it.
    """

    task_id: str
    kind: TaskKind
    sampling: Sampling
    messages: list[dict[str, object]] = []
    tools: list[dict[str, object]] = []
    text: str = ""
    tokens: list[int] = []
    template_options: dict[str, object] = {}


class Cancel(_Message, frozen=True):
    """Drop a task; answered by `TaskDropped` unless the task's end is already on its way."""

    task_id: str


class Stop(_Message, frozen=True):
    """Finish nothing, free everything, exit with code 0."""


class StageLayer(_Message, frozen=True):
    """Bring the new experts of a layer to all ranks, beside the live ones. Answered by `LayerStaged`."""

    migration_id: str
    moves: LayerMoves


class ApplyLayer(_Message, frozen=True):
    """The layer is committed: compute by its new map from the next batch on. Answered by `LayerApplied`."""

    migration_id: str
    layer: int
    epoch: int
    map: list[int]


class DropStaging(_Message, frozen=True):
    """The migration was aborted: forget what is staged."""

    migration_id: str


ToRunner = Load | Connect | WarmUp | Generate | Cancel | StageLayer | ApplyLayer | DropStaging | Stop


class StatusIs(_Message, frozen=True):
    """The runner's status changed."""

    status: RunnerStatus


class Logprob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """`engines.contract.TokenLogprob` on the wire; ``top`` rows are (token, text, raw, logprob)."""

    token: int
    text: str
    raw: bytes
    logprob: float
    top: list[tuple[int, str, bytes, float]] = []


class Chunk(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """New text of one task."""

    task_id: str
    text: str
    tokens: list[int]
    logprobs: list[Logprob] = []


class Admitted(_Message, frozen=True):
    """A task passed `prepare` and waits or runs; its prompt has this many tokens."""

    task_id: str
    prompt_tokens: int


class Progress(_Message, frozen=True):
    """One engine step: new text of every task that has some, and the phase that the step was in.

    ``prefilling`` are tasks whose prompt is being computed, ``decoding`` those that draw tokens: the
    supervisor resets the deadline of each phase with every such message.
    """

    chunks: list[Chunk]
    prefilling: list[str]
    decoding: list[str]


class TaskDone(_Message, frozen=True):
    """A task's answer is complete; all its text has been sent."""

    task_id: str
    finish_reason: FinishReason
    usage: Usage
    timings: Timings


class TaskBroken(_Message, frozen=True):
    """A task got no answer; the runner is well."""

    task_id: str
    cause: Cause
    usage: Usage


class TaskDropped(_Message, frozen=True):
    """A cancelled task is gone."""

    task_id: str
    usage: Usage


class ExpertLoad(_Message, frozen=True):
    """A load window has closed; the fields are those of `engines.contract.LoadWindow`."""

    window: int
    epoch: int
    steps: int
    tokens: int
    seconds: float
    bandwidth: float
    counts: list[list[float | None]]


class LayerStaged(_Message, frozen=True):
    """All ranks have staged a layer, or (``cause`` given) one of them could not."""

    migration_id: str
    layer: int
    slots: list[StagedSlot] = []
    bytes: int = 0
    seconds: float = 0.0
    cause: Cause | None = None


class LayerApplied(_Message, frozen=True):
    """All ranks have applied a layer; their digests of map and lookup, by rank."""

    migration_id: str
    layer: int
    digests: list[str]
    seconds: float


FromRunner = (
    StatusIs
    | Admitted
    | Progress
    | TaskDone
    | TaskBroken
    | TaskDropped
    | ExpertLoad
    | LayerStaged
    | LayerApplied
)

MAX_FRAME = 256 * 1024 * 1024
"""Bytes; a longer frame is a broken peer, not a message."""

_HEADER = struct.Struct(">I")


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One end of the socket. `send` may be called from any thread, `receive` from one.

    ``incoming`` is the union this side receives: `ToRunner` in the runner, `FromRunner` in the supervisor.
    """

    def __init__(self, sock: socket.socket, incoming: object) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToRunner | FromRunner] = msgspec.msgpack.Decoder(
            incoming  # pyright: ignore[reportArgumentType]
        )
        self._buffer = bytearray()

    def send(self, message: ToRunner | FromRunner) -> None:
        """Send one message. Raises `ChannelClosed`, and what `pack` raises."""
        self.send_frame(self.pack(message))

    def pack(self, message: ToRunner | FromRunner) -> bytes:
        """The frame of a message. Raises `OverflowError`, `ValueError` or `TypeError` for what has none."""
        body = self._encoder.encode(message)
        return _HEADER.pack(len(body)) + body

    def send_frame(self, frame: bytes) -> None:
        """Send what `pack` made; waits while the other side takes nothing. Raises `ChannelClosed`."""
        try:
            with self._lock:
                self._sock.sendall(frame)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> Iterator[ToRunner | FromRunner]:
        """Yield messages until the other side closes. Raises `ChannelClosed` on a broken frame."""
        while True:
            yield from self._frames()
            try:
                data = self._sock.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            self._buffer += data

    def _frames(self) -> Iterator[ToRunner | FromRunner]:
        start, buffer = 0, self._buffer
        while len(buffer) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(buffer, start)
            if size > MAX_FRAME:
                raise ChannelClosed(f"a frame of {size} bytes")
            end = start + _HEADER.size + size
            if len(buffer) < end:
                break
            body = bytes(buffer[start + _HEADER.size : end])
            start = end
            yield self._decoder.decode(body)
        del buffer[:start]

    def close(self) -> None:
        """Close the socket; the other side's `receive` ends."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
