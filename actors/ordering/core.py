"""The state machine that makes the logs of a mesh of nodes one log.

A node leads, follows or has no master:

- Without a master, a node waits until the others have noticed too; then the one with the longest log
  leads, in an epoch that no node has promised yet. A node that hears of a working master joins it and
  never competes.
- A master gives each entry its index by appending it to its own log, then sends it to its followers. It
  needs no majority: each side of a partition goes on.
- To join, a node sends the run map of its log. The master answers with the index up to which both logs are
  the same. What the joiner has beyond it goes to a rejected branch, and the master's entries take its place.
- When two masters meet, the one with the larger side wins. The other asks to join it, goes on ordering
  until it is welcomed, then steps down.
- A follower takes an entry only from its master, in the epoch in which it was welcomed, and only at the
  next index. Anything else means that something was lost: it joins again.

So an entry is known by its epoch and index; logs that share one share all that went before; an entry that all
nodes hold is never rejected; and without partitions nor is one that two nodes hold. An entry on one side of a
partition may be: it is then in that side's rejected branch, and the shell says so.

Every rule but the answers to messages is in `Core._review`, which looks at the whole after each input: a lost
or doubled message changes when something happens, never what.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.ordering import interface as io
from actors.ordering import messages as msg
from actors.ordering.epochs import Epoch, fork_point
from actors.ordering.followers import Followers
from actors.ordering.peers import Peers

_OUTVOTED = "Two masters met after a partition, and the other one's side was larger."
_BARS = "The others have gone another way since before this log begins, and nobody follows it."
_LEFT_BEHIND = "These decisions had not reached the node that became master."


@dataclass(slots=True)
class _Following:
    """Welcomed by the master of ``epoch``; the log is behind until it has come to ``goal``."""

    epoch: Epoch
    goal: int
    moved_at: float
    suspect: bool = False
    """Something that the master sent was lost: join again."""


@dataclass(slots=True)
class _Joining:
    """A master was asked to welcome this node, which waits until ``until``."""

    node_id: str
    ticket: str
    until: float


class Core:
    """One node's part. Tell it what happens with `handle`; carry out what it returns, in order.

    ``promised`` is what was last persisted, 0 at the first start. Call `handle` with a `Tick` when
    `next_deadline` comes, which may be at once.
    """

    def __init__(
        self,
        me: io.Member,
        promised: int,
        log: io.LogView,
        now: float,
        timing: io.Timing = io.Timing(),  # noqa: B008 - it is immutable
    ) -> None:
        self._me = me
        self._promised = promised
        self._log = log
        self._timing = timing
        self._now = now
        self._peers = Peers()
        self._followers: Followers | None = None
        self._following: _Following | None = None
        self._joining: _Joining | None = None
        self._masterless_at = now
        self._behind = False
        self._taking_out_until = now
        """Until then a node may act on our welcome and take out what we do not have. We step down only
        afterwards: from the greater master we might get just that, and then all nodes would have held it.
        A welcome counts for ``retry`` from when it was asked for.
        """
        self._barred: dict[str, float] = {}
        """Nodes that can't join this log, and since when they have asked."""
        self._tickets = 0
        self._beat_at = now
        self._announced = self._status(number=0)
        self._effects: list[io.Effect] = []

    @property
    def epoch(self) -> Epoch | None:
        """What this node works in, None while it has no master."""
        if self._followers is not None:
            return self._followers.epoch
        return self._following.epoch if self._following is not None else None

    @property
    def master(self) -> str | None:
        """The master's node id, None while there is none."""
        return self.epoch.node_id if self.epoch is not None else None

    def holders(self, index: int) -> int:
        """How many nodes hold the entry at ``index`` durably, as the master knows; elsewhere 0."""
        return self._followers.holders(index) if self._followers is not None else 0

    def next_deadline(self) -> float:
        """When to call `handle` with a `Tick` at the latest, on the clock of ``now``."""
        deadlines = [self._beat_at]
        if self._joining is not None:
            deadlines.append(self._joining.until)
        elif self.epoch is None and self._stands_at() > self._now:
            deadlines.append(self._stands_at())
        return min(deadlines)

    def handle(self, now: float, event: io.Input) -> list[io.Effect]:
        """What follows from an input at ``now``. The log must be as the effects before left it."""
        self._now = now
        self._effects = []
        if now >= self._beat_at:
            self._announce()
        match event:
            case io.PeerUp(node_id):
                self._peer_down(node_id)
                self._peers.up(node_id, now)
                self._announce_soon()
            case io.PeerDown(node_id):
                self._peer_down(node_id)
            case io.Received(node_id, message) if node_id in self._peers:
                self._received(node_id, message)
            case io.Committed(upto):
                self._replicate(upto)
            case _:
                pass
        self._review()
        return self._effects

    # What others say

    def _received(self, node_id: str, message: msg.Message) -> None:
        match message:
            case msg.Status():
                self._learn(node_id, message)
            case msg.Join():
                self._asked_to_welcome(node_id, message)
            case msg.Welcome():
                self._welcomed(node_id, message)
            case msg.Entries() if node_id == self.master:
                self._take(node_id, message)
            case msg.Ack():
                self._acknowledged(node_id, message.epoch, message.index)
            case _:
                pass

    def _learn(self, node_id: str, status: msg.Status) -> None:
        if not self._peers.learn(node_id, status):
            return
        if status.epoch is not None and status.epoch == self.epoch:
            self._acknowledged(node_id, status.epoch, status.index)
        elif self._followers is not None:
            self._followers.drop(node_id)
        if self._following is not None and status.epoch == self.epoch and node_id == self.master:
            self._compare_with_master(self._following, status.index)

    def _compare_with_master(self, following: _Following, index: int) -> None:
        """Nothing new for a while though there is more: it was lost."""
        if self._log.last()[1] >= index:
            following.moved_at = self._now
        elif self._now - following.moved_at > self._timing.retry:
            following.suspect = True

    def _acknowledged(self, node_id: str, epoch: Epoch, index: int) -> None:
        if self._followers is None or self._followers.epoch != epoch:
            return
        if self._followers.acknowledge(node_id, index):
            self._effects.append(io.Held(node_id, index))
        self._replicate(self._log.last()[1])

    def _replicate(self, index: int) -> None:
        if self._followers is not None:
            for node_id, entries in self._followers.due(index):
                self._send(node_id, entries)

    def _asked_to_welcome(self, node_id: str, join: msg.Join) -> None:
        if self._followers is None or not self._may_welcome(node_id):
            return
        fork = fork_point(self._log.runs(), join.runs)
        if fork < self._log.begins():
            self._bar(node_id, join, fork)
            return
        self._barred.clear()
        if join.runs and fork < join.runs[-1].last:
            if self._joining is None and self._greater_master(self._announced) is not None:
                return  # we are about to join that one, and it may keep what we would take out
            self._taking_out_until = self._now + self._timing.retry
        self._joining = None
        if join.promised > self._followers.epoch.n:
            self._lead(at_least=join.promised)
        entries = self._followers.welcome(node_id, fork)
        epoch, index = self._followers.epoch, self._log.last()[1]
        self._send(
            node_id,
            msg.Welcome(ticket=join.ticket, epoch=epoch, fork=fork, entries=entries, index=index),
        )

    def _bar(self, node_id: str, join: msg.Join, fork: int) -> None:
        """What the other lacks has yet to come here.

        Where its log has gone another way, that may be nowhere any more. A master alone with such a log would
        keep all others from electing one, for ever.
        """
        if self._followers or not join.runs or fork == join.runs[-1].last:
            return
        if self._now - self._barred.setdefault(node_id, self._now) >= self._timing.patience:
            self._effects.append(io.SetAside(_BARS))

    def _may_welcome(self, node_id: str) -> bool:
        """Not while we ask to be welcomed ourselves; but where two ask each other, the greater id accepts."""
        joining = self._joining
        return joining is None or (joining.node_id == node_id and node_id < self._me.node_id)

    def _welcomed(self, node_id: str, welcome: msg.Welcome) -> None:
        joining = self._joining
        if joining is None or (joining.node_id, joining.ticket) != (node_id, welcome.ticket):
            return
        if self._now >= joining.until:
            return  # the other may have stepped down since, see `_taking_out_until`
        reason = _OUTVOTED if self._followers is not None else _LEFT_BEHIND
        self._joining = None
        self._followers = None
        self._following = _Following(welcome.epoch, goal=welcome.index, moved_at=self._now)
        self._promise(welcome.epoch.n)
        self._effects.append(io.Follow(node_id, welcome.epoch))
        self._adopt(welcome, reason)
        self._send(node_id, msg.Ack(epoch=welcome.epoch, index=welcome.fork + len(welcome.entries)))
        self._announce_soon()

    def _adopt(self, welcome: msg.Welcome, reason: str) -> None:
        if welcome.fork < self._log.last()[1]:
            self._effects.append(io.Rewind(welcome.fork, welcome.epoch, reason, welcome.entries))
        elif welcome.entries:
            self._effects.append(io.Append(welcome.entries))

    def _take(self, node_id: str, entries: msg.Entries) -> None:
        following = self._following
        if following is None or following.epoch != entries.epoch or self._joining is not None:
            return  # an older epoch, or the fork that we asked for would no longer be where our log ends
        index = self._log.last()[1]
        if entries.after > index:
            following.suspect = True
            return
        fresh = entries.entries[index - entries.after :]
        if fresh:
            following.moved_at = self._now
            self._effects.append(io.Append(fresh))
        self._send(node_id, msg.Ack(epoch=entries.epoch, index=index + len(fresh)))

    # What follows from the whole

    def _review(self) -> None:
        """Give up what has become void, then join, lead or wait.

        Not while entries are on their way into the log: a run map without them would be a wrong one. The next
        input, at the latest the next beat, comes when they are in it.
        """
        if any(isinstance(effect, io.Append | io.Rewind) for effect in self._effects):
            return
        if self._joining is not None and self._has_failed(self._joining):
            self._joining = None
        if self._following is not None:
            self._review_master(self._following)
        if self._joining is not None or self._following is not None:
            return
        own = self._announced if self._followers is not None else self._status(self._announced.number)
        if own.epoch != self.epoch:
            return  # the others have yet to hear that we lead
        master = self._greater_master(own)
        if master is not None and self._now >= self._taking_out_until:
            self._join(master)
        elif self._followers is None and self._is_elected(own):
            self._lead()

    def _greater_master(self, own: msg.Status) -> str | None:
        """Whom to join; where we lead ourselves, only one with the greater claim."""
        master = self._peers.greatest_master(own)
        if master is None or (self._followers is not None and not self._peers.is_greater(master[1], own)):
            return None
        return master[0]

    def _has_failed(self, joining: _Joining) -> bool:
        return self._now >= joining.until or not self._peers.leads(joining.node_id)

    def _review_master(self, following: _Following) -> None:
        master = following.epoch.node_id
        status = self._peers.status(master)
        if status is None or status.epoch is None or not self._peers.leads(master):
            self._lose_master(following)
        elif self._joining is None and (following.suspect or status.epoch > following.epoch):
            self._join(master)

    def _lose_master(self, following: _Following) -> None:
        self._behind = self._log.last()[1] < following.goal
        self._following = None
        self._joining = None
        self._masterless_at = self._now
        self._effects.append(io.Masterless())
        self._announce_soon()

    def _stands_at(self) -> float:
        """When a node without a master may stand for election."""
        timing = self._timing
        alone = 0.0 if self._peers else timing.lone
        behind = timing.patience if self._behind or self._log.begins() else 0.0
        noticed = self._masterless_at + timing.settle + alone + behind
        return max(noticed, self._peers.silent_since() + timing.settle)

    def _is_elected(self, own: msg.Status) -> bool:
        """True where nobody has a master and our log comes first. Who is linked to a master waits for it."""
        if self._now < self._stands_at():
            return False
        mine = self._peers.standing(self._me.node_id, own, own)
        return all(
            status.epoch is None and self._peers.standing(node_id, status, own) < mine
            for node_id, status in self._peers.rivals(own)
        )

    def _join(self, node_id: str) -> None:
        self._tickets += 1
        ticket = f"{self._me.incarnation}-{self._tickets}"
        self._joining = _Joining(node_id, ticket, self._now + self._timing.retry)
        self._send(node_id, msg.Join(ticket=ticket, promised=self._promised, runs=self._log.runs()))

    def _lead(self, at_least: int = 0) -> None:
        """Take office in an epoch beyond all promises that we know of."""
        n = self._next_n(at_least)
        self._promise(n)
        epoch = Epoch(n, self._me.node_id, self._me.incarnation)
        self._followers = Followers(epoch, self._log)
        self._behind = False
        self._effects.append(io.Lead(epoch))
        self._announce_soon()

    def _next_n(self, at_least: int) -> int:
        return 1 + max(self._promised, self._log.last()[0].n, self._peers.promised(), at_least)

    def _promise(self, n: int) -> None:
        if n > self._promised:
            self._promised = n
            self._effects.append(io.Persist(n))

    def _peer_down(self, node_id: str) -> None:
        self._peers.down(node_id)
        self._barred.pop(node_id, None)
        if self._followers is not None:
            self._followers.drop(node_id)

    # What we say

    def _announce_soon(self) -> None:
        """At the next tick, which is due at once: the log is then as this input's effects leave it."""
        self._beat_at = self._now

    def _announce(self) -> None:
        self._beat_at = self._now + self._timing.beat
        self._announced = self._status(self._announced.number + 1)
        for node_id in self._peers:
            self._send(node_id, self._announced)

    def _status(self, number: int) -> msg.Status:
        epoch, index = self._log.last()
        runs = self._log.runs()
        return msg.Status(
            number=number,
            promised=self._promised,
            epoch=self.epoch,
            genesis=runs[0].epoch if runs else epoch,
            last_epoch=epoch,
            index=index,
            followers=len(self._followers) if self._followers is not None else 0,
            seniority=self._me.seniority,
            whole=not self._log.begins(),
        )

    def _send(self, node_id: str, message: msg.Message) -> None:
        self._effects.append(io.Send(node_id, message))
