"""Between the state machine and its shell: what the shell tells it, and what it then has to do."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from actors.ordering.epochs import Epoch, Run
from actors.ordering.messages import Message


class Member(NamedTuple):
    """Who a node is. ``incarnation`` is new at each start; of equal logs the greater ``seniority`` leads."""

    node_id: str
    incarnation: str
    seniority: float = 0.0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. The defaults are for links that notice a dead peer within 2 s."""

    settle: float = 0.8
    """A node without a master waits so long for the others to notice and to say where their logs end."""
    lone: float = 2.0
    """A node without any link waits so much longer: the others may only be slow to be found."""
    patience: float = 30.0
    """A node without the whole log, be it without its newest part or its past, waits so much longer for one
    that has it."""
    beat: float = 1.0
    """Between two words of a node's status."""
    retry: float = 1.0
    """After which a request to join is made anew, and a follower that gets nothing asks again."""


class LogView(Protocol):
    """The node's durable log, read by the state machine. An entry is one decision as the shell encodes it."""

    def last(self) -> tuple[Epoch, int]:
        """Epoch and index of the last entry; `NO_EPOCH` and 0 where the log is empty."""
        ...

    def runs(self) -> list[Run]:
        """The run map, oldest first."""
        ...

    def begins(self) -> int:
        """The index that the log begins after while its past is still to come; 0 where it has it all."""
        ...

    def entries(self, after: int, limit: int) -> list[bytes]:
        """At most ``limit`` entries from index ``after + 1`` on."""
        ...


class PeerUp(NamedTuple):
    """There is a link to a node, and nothing of an earlier link will come any more."""

    node_id: str


class PeerDown(NamedTuple):
    """The link to a node is gone, and with it what was on its way."""

    node_id: str


class Received(NamedTuple):
    """A message came over the link from a node."""

    node_id: str
    message: Message


class Committed(NamedTuple):
    """The local master's decisions up to index ``upto`` are durable here."""

    upto: int


class Tick(NamedTuple):
    """`next_deadline` has come."""


Input = PeerUp | PeerDown | Received | Committed | Tick


class Persist(NamedTuple):
    """Put the promise on the disk, durably, before anything that follows."""

    promised: int


class Send(NamedTuple):
    """Send a message to a node."""

    node_id: str
    message: Message


class Lead(NamedTuple):
    """Be the master from now on: decide, and begin the log's new epoch with `EpochStarted`.

    Comes again with a later epoch where a node joins that has promised more than the current one.
    """

    epoch: Epoch


class Follow(NamedTuple):
    """``node_id`` is the master: decide nothing here, forward to it. What is not committed yet is void."""

    node_id: str
    epoch: Epoch


class Masterless(NamedTuple):
    """There is no master for now: refuse commands until one is found."""


class Append(NamedTuple):
    """Append the master's entries as they are, durably."""

    entries: list[bytes]


class Rewind(NamedTuple):
    """In one transaction: move all after ``fork`` to the rejected branch, then append ``entries``.

    ``winner`` and ``reason`` are kept with the branch. Then tell those whose commands were in it.
    """

    fork: int
    winner: Epoch
    reason: str
    entries: list[bytes]


class Held(NamedTuple):
    """A follower holds the log durably up to index ``upto``; see `Core.holders`."""

    node_id: str
    upto: int


class SetAside(NamedTuple):
    """Start with an empty log: this one bars the others from joining, and can't be made to fit theirs."""

    why: str


Effect = Persist | Send | Lead | Follow | Masterless | Append | Rewind | Held | SetAside
"""To be carried out in their order, all of them before the next input."""
