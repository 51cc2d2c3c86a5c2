"""What nodes say to each other to agree on one log."""

from __future__ import annotations

import msgspec

from actors.ordering.epochs import Epoch, Run


class Status(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A node as it is now, said to all at every change and beat: a lost one is made good by the next."""

    number: int
    """Counts from 1 in one incarnation: an older one that comes later is no news."""
    promised: int
    """The node will work in no epoch with a smaller ``n``."""
    epoch: Epoch | None
    """What it works in: its own where it leads, its master's where it follows; None: it has no master."""
    genesis: Epoch
    """The first epoch of its log. Logs that differ in it have nothing in common."""
    last_epoch: Epoch
    index: int
    """Where its log ends, durably."""
    followers: int
    seniority: float
    whole: bool = True
    """The log has its past. Of equal logs one that has it leads: it knows every command that was decided."""


class Join(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Let me follow you. ``ticket`` comes back in the answer: only the newest request is taken up."""

    ticket: str
    promised: int
    runs: list[Run]


class Welcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Follow me in ``epoch``: drop what you have after ``fork``, and go on with ``entries``.

    ``index`` is the end of the master's log: a follower is behind until it has come so far.
    """

    ticket: str
    epoch: Epoch
    fork: int
    entries: list[bytes]
    index: int


class Entries(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The entries that follow index ``after`` in the master's log."""

    epoch: Epoch
    after: int
    entries: list[bytes]


class Ack(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The log is durable here up to ``index``; send what comes next."""

    epoch: Epoch
    index: int


Message = Status | Join | Welcome | Entries | Ack

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The message as MessagePack."""
    return _ENCODER.encode(message)


def decode(payload: bytes) -> Message:
    """The message of a payload. Raises `msgspec.MsgspecError` where it is none."""
    return _DECODER.decode(payload)
