"""The state machine of a log whose order a stream outside gives, as `core` is that of the mesh's.

- The stream is the log. A decision counts once the stream has it, and gets its index there; every node, the
  master too, appends what the stream delivers. So nothing that may yet be refused is ever in a node's log.
- Who holds the lease leads, in an epoch of its own, once its log has come to where the stream ended when the
  lease was granted. Each message that it publishes is for one place in the stream, and is refused where the
  stream has gone on: then another has written. Whether it is refused or gets no answer, the master gives up
  its office, and learns from the stream what became of it.
- A log may know more than the stream: its node was alone before, or the stream was lost. While the stream
  ends before that, who holds the lease publishes the rest before it leads. Where the stream goes on
  otherwise, the rest goes to a rejected branch.
- A log that began after a base follows a stream that has the base. While the stream ends before it, such a
  node can't lead: only a node that has the past can give it to the stream.

A message is several decisions in their order. Its number in the stream has nothing to do with their indexes.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from actors.ordering import interface as io
from actors.ordering.epochs import Epoch
from events.replication import place_of

MAX_ENTRIES = 500
"""Entries that a log offers to the stream at a time."""

_OVERTAKEN = "The cluster's stream went on without these decisions."


class StreamedLog(Protocol):
    """The node's durable log, which follows the stream."""

    def last(self) -> tuple[Epoch, int]:
        """Epoch and index of the last entry; `NO_EPOCH` and 0 where the log is empty."""
        ...

    def entries(self, after: int, limit: int) -> list[bytes]:
        """At most ``limit`` entries from index ``after + 1`` on."""
        ...

    def begins(self) -> int:
        """The index that the log begins after while its past is still to come; 0 where it has it all."""
        ...

    def hash_at(self, index: int) -> str:
        """What the entry at ``index``, or the one that the log begins after, has in no other history."""
        ...


class Common(NamedTuple):
    """The log is the stream's up to its entry ``last``, with which the stream's message ``number`` ends.

    Said at the start, and again where the stream has lost something or the log has begun after a base.
    ``ends`` is the last entry that the stream had then. What comes before the log's base counts as the log's.
    """

    last: int
    number: int
    ends: int = 0


class Delivered(NamedTuple):
    """What the stream's next messages hold, up to number ``upto``, all published in ``epoch``."""

    epoch: Epoch
    upto: int
    entries: list[bytes]


class Granted(NamedTuple):
    """The lease is this node's. ``term`` is greater than any before; message ``upto`` was the last then."""

    term: int
    upto: int


class Lost(NamedTuple):
    """The lease of this term is lost, or what was published in it was refused or got no answer."""

    term: int


class Holder(NamedTuple):
    """Another node holds the lease; ``node_id`` is empty where nobody does or it can't be known."""

    node_id: str


Input = Common | Delivered | Granted | Lost | Holder


class Publish(NamedTuple):
    """Publish entries after all before, in this order, unless the term is over."""

    term: int
    epoch: Epoch
    entries: list[bytes]


class Resign(NamedTuple):
    """Give the lease of this term back, and publish nothing more in it."""

    term: int
    why: str


Effect = io.Lead | io.Follow | io.Masterless | io.Append | io.Rewind | Publish | Resign
"""To be carried out in their order, all of them before the next input."""


class Leased:
    """One node's part. ``common`` is what is known of log and stream at the start."""

    def __init__(self, me: io.Member, log: StreamedLog, common: Common) -> None:
        self._me = me
        self._log = log
        self._n = 0
        self._compared(common)
        self._grant: Granted | None = None
        self._epoch: Epoch | None = None
        self._leads = False
        self._offered = 0
        self._leader = ""
        self._effects: list[Effect] = []

    def handle(self, event: Input) -> list[Effect]:
        """What follows from an input. The log must be as the effects before left it."""
        self._effects = []
        match event:
            case Common():
                self._resign("the log was compared with the stream again")
                self._compared(event)
            case Delivered():
                self._delivered(event)
            case Granted():
                self._learn("")
                self._grant, self._epoch, self._offered = event, None, 0
                if event.upto < self._seen:
                    self._resign("the stream has less than it had")  # which `Common` will tell
            case Lost(term):
                if self._grant is not None and self._grant.term == term:
                    self._step_down()
            case Holder(node_id):
                if self._grant is None:
                    self._learn(node_id)
        self._review()
        return self._effects

    def publication(self, entries: list[bytes]) -> Publish:
        """What the master decided. Only while it leads."""
        if self._grant is None or self._epoch is None or not self._leads:
            raise RuntimeError("Only who leads may publish.")
        return Publish(self._grant.term, self._epoch, entries)

    def _compared(self, common: Common) -> None:
        epoch, self._index = self._log.last()
        self._n = max(self._n, epoch.n)
        self._common, self._seen = common.last, common.number

    def _delivered(self, event: Delivered) -> None:
        self._seen = event.upto
        self._n = max(self._n, event.epoch.n)
        if self._epoch is not None and event.epoch != self._epoch:
            epoch = event.epoch
            self._resign(f"node {epoch.node_id} has written into the stream, in epoch {epoch.n}")
        fresh = self._unmatched(event.entries)
        if not fresh:
            return
        if self._common < self._index:
            self._effects.append(io.Rewind(self._common, event.epoch, _OVERTAKEN, fresh))
        else:
            self._effects.append(io.Append(fresh))
        self._common = self._index = self._common + len(fresh)

    def _unmatched(self, entries: list[bytes]) -> list[bytes]:
        """Those after the first ones that the log has just so."""
        if self._common == self._index:
            return entries
        begins = self._log.begins()
        for position, entry in enumerate(entries):
            index, own_hash = place_of(entry)
            if index > self._index or (index >= begins and own_hash != self._log.hash_at(index)):
                return entries[position:]
            self._common = index
        return []

    def _review(self) -> None:
        """Take office, once the log and the stream are the same."""
        grant = self._grant
        if grant is None or self._leads or self._seen < grant.upto:
            return
        if self._epoch is None:
            self._epoch = Epoch(max(grant.term, self._n + 1), self._me.node_id, self._me.incarnation)
        if self._common == self._index:
            self._leads = True
            self._effects.append(io.Lead(self._epoch))
        elif self._common < self._log.begins():
            self._resign("the stream ends before this log begins")
        elif self._offered <= self._common:
            entries = self._log.entries(self._common, MAX_ENTRIES)
            self._offered = self._common + len(entries)
            self._effects.append(Publish(grant.term, self._epoch, entries))

    def _resign(self, why: str) -> None:
        if self._grant is not None:
            self._effects.append(Resign(self._grant.term, why))
            self._step_down()

    def _step_down(self) -> None:
        if self._leads:
            self._effects.append(io.Masterless())
        self._grant, self._epoch, self._leads = None, None, False

    def _learn(self, leader: str) -> None:
        if leader == self._leader:
            return
        self._leader = leader
        self._effects.append(io.Follow(leader, Epoch(self._n, leader, "")) if leader else io.Masterless())
