"""The stream's messages: decisions in order, below a subject that says in which epoch they were published."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from actors.ordering.epochs import Epoch


def subject_of(root: str, epoch: Epoch) -> str:
    """Where an epoch's decisions are published."""
    return f"{root}.{epoch.n}.{epoch.node_id}.{epoch.incarnation}"


def epoch_of(subject: str) -> Epoch:
    """The epoch that published there. Raises `ValueError`."""
    n, node_id, incarnation = subject.rsplit(".", 3)[1:]
    return Epoch(int(n), node_id, incarnation)


def encode(entries: Sequence[bytes]) -> bytes:
    """A message of these entries, at least one."""
    return msgspec.msgpack.encode(entries)


def decode(message: bytes) -> list[bytes]:
    """The entries of a message. Raises `msgspec.MsgspecError`."""
    return msgspec.msgpack.decode(message, type=list[bytes])
