"""What a node knows of the others, and who of them takes precedence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from actors.ordering.epochs import NO_EPOCH, Epoch
from actors.ordering.messages import Status

Cluster = tuple[int, Epoch]
"""How much a log's history weighs: its length as far as is known, and the first epoch to break a tie."""


@dataclass(slots=True)
class _Peer:
    up_at: float
    status: Status | None = None


class Peers:
    """The nodes with a link to this one, each with the newest status that it sent."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    def __bool__(self) -> bool:
        return bool(self._peers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._peers

    def up(self, node_id: str, now: float) -> None:
        """A link to a node; nothing is known of it yet."""
        self._peers[node_id] = _Peer(now)

    def down(self, node_id: str) -> None:
        """Its link is gone."""
        self._peers.pop(node_id, None)

    def learn(self, node_id: str, status: Status) -> bool:
        """Note a status. False where a newer one has come before."""
        peer = self._peers[node_id]
        if peer.status is not None and peer.status.number >= status.number:
            return False
        peer.status = status
        return True

    def status(self, node_id: str) -> Status | None:
        """The newest status of a node, if it has sent any over this link."""
        peer = self._peers.get(node_id)
        return peer.status if peer is not None else None

    def leads(self, node_id: str) -> bool:
        """True where the node said that it is a master."""
        status = self.status(node_id)
        return status is not None and _leads(node_id, status)

    def promised(self) -> int:
        """The highest promise heard of."""
        return max((status.promised for _, status in self._known()), default=0)

    def silent_since(self) -> float:
        """When the last link came up whose node has said nothing yet; minus infinity where all have."""
        silent = [peer.up_at for peer in self._peers.values() if peer.status is None]
        return max(silent, default=float("-inf"))

    def greatest_master(self, own: Status) -> tuple[str, Status] | None:
        """The master whose claim is greatest, unless its history weighs less than that of our own log."""
        floor = self._cluster(own, own)
        masters = [(node_id, status) for node_id, status in self._known() if _leads(node_id, status)]
        masters = [master for master in masters if self._cluster(master[1], own) >= floor]
        return max(masters, key=lambda master: self._claim(master[1], own), default=None)

    def is_greater(self, master: Status, own: Status) -> bool:
        """True where another master has the greater claim. Both sides compare the same two words."""
        return self._claim(master, own) > self._claim(own, own)

    def rivals(self, own: Status) -> Iterator[tuple[str, Status]]:
        """The nodes whose word counts when a master is sought: not those of a lesser history."""
        floor = self._cluster(own, own)
        return ((n, status) for n, status in self._known() if self._cluster(status, own) >= floor)

    def standing(self, node_id: str, status: Status, own: Status) -> tuple[object, ...]:
        """What a node without a master is elected by: the longest log first."""
        log = (*self._cluster(status, own), status.last_epoch, status.index, status.whole)
        return (*log, status.seniority, node_id)

    def _claim(self, status: Status, own: Status) -> tuple[object, ...]:
        """What masters that meet are compared by: the larger live side wins, then the longer log."""
        return (*self._cluster(status, own), status.followers, status.index, status.epoch or NO_EPOCH)

    def _cluster(self, status: Status, own: Status) -> Cluster:
        """Logs that share a history weigh the same.

        Of two that have nothing in common the longer wins, whatever follows it: new nodes that found each
        other while an old one restarted must not have its log thrown out.
        """
        genesis = status.genesis
        lengths = [known.index for _, known in self._known() if known.genesis == genesis]
        if own.genesis == genesis:
            lengths.append(own.index)
        return max(lengths), genesis

    def _known(self) -> Iterator[tuple[str, Status]]:
        return ((n, peer.status) for n, peer in self._peers.items() if peer.status is not None)


def _leads(node_id: str, status: Status) -> bool:
    return status.epoch is not None and status.epoch.node_id == node_id
