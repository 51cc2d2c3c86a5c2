"""The master's book of its followers: what each holds, and what is on its way to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from actors.ordering.epochs import Epoch
from actors.ordering.interface import LogView
from actors.ordering.messages import Entries

MAX_ENTRIES = 500
"""Entries in one message,"""
MAX_BYTES = 1024 * 1024
"""and their bytes, unless a single one has more."""
MAX_UNACKED = 8
"""Messages on their way to one follower. Each acknowledgement makes room for the next: one that is a
million entries behind gets them as fast as it takes them, and fills no link."""


@dataclass(slots=True)
class _Follower:
    acked: int
    sent: int
    unacked: deque[int] = field(default_factory=deque[int])
    """The last index of each message that is on its way."""


class Followers:
    """The followers of one epoch; ``log`` is the master's own."""

    def __init__(self, epoch: Epoch, log: LogView) -> None:
        self.epoch = epoch
        self._log = log
        self._followers: dict[str, _Follower] = {}

    def __len__(self) -> int:
        return len(self._followers)

    def welcome(self, node_id: str, fork: int) -> list[bytes]:
        """Take up a follower whose log is ours up to ``fork``; the first entries to give it."""
        entries = self._read(fork)
        follower = self._followers[node_id] = _Follower(acked=fork, sent=fork)
        self._on_its_way(follower, entries)
        return entries

    def acknowledge(self, node_id: str, index: int) -> bool:
        """Note what a follower holds. True where it is more than was known.

        One that is not in the book was struck out by an old word of its own: it is taken up again.
        """
        follower = self._followers.get(node_id)
        if follower is None:
            self._followers[node_id] = _Follower(acked=index, sent=index)
            return True
        while follower.unacked and follower.unacked[0] <= index:
            follower.unacked.popleft()
        if index <= follower.acked:
            return False
        follower.acked, follower.sent = index, max(index, follower.sent)
        return True

    def drop(self, node_id: str) -> None:
        """Strike out a node that is gone or follows another."""
        self._followers.pop(node_id, None)

    def due(self, index: int) -> Iterator[tuple[str, Entries]]:
        """What to send now that the log ends at ``index``: one message a follower that has room for it."""
        read: dict[int, list[bytes]] = {}
        for node_id, follower in self._followers.items():
            after = follower.sent
            if after >= index or len(follower.unacked) >= MAX_UNACKED:
                continue
            if after not in read:
                read[after] = self._read(after)
            self._on_its_way(follower, read[after])
            yield node_id, Entries(epoch=self.epoch, after=after, entries=read[after])

    def holders(self, index: int) -> int:
        """How many nodes hold the entry at ``index`` durably, the master included."""
        return 1 + sum(follower.acked >= index for follower in self._followers.values())

    def _read(self, after: int) -> list[bytes]:
        entries = self._log.entries(after, MAX_ENTRIES)
        size = 0
        for position, entry in enumerate(entries):
            size += len(entry)
            if size > MAX_BYTES and position:
                return entries[:position]
        return entries

    def _on_its_way(self, follower: _Follower, entries: list[bytes]) -> None:
        if entries:
            follower.sent += len(entries)
            follower.unacked.append(follower.sent)
