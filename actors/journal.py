"""The journal: the one writer of log.db, and the keeper of its order.

It commits whatever waits, then publishes what is committed. In a cluster it is the shell of the ordering
core (`actors.ordering`): where this node leads, what it commits goes to the followers; where it follows, it
appends what the leader sends, as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from actors.actor import Actor
from actors.clock import Timer
from actors.deferred import Deferred
from actors.joining import Newcomer, Offer, Offered
from actors.log_aside import mark_unusable, open_log
from actors.log_view import OrderedLog
from actors.ordering import interface as io
from actors.ordering import messages as msg
from actors.ordering.core import Core
from actors.refusal import Rejected, Stopped
from actors.replica import Paths
from events.ends import Base
from events.errors import EntriesRefused, LogIncomplete, LogTooNew, Unreadable
from events.feed import CommitFeed
from events.files import write_durably
from events.record import Committed
from events.to_rows import EncodedDraft
from projections.snapshot import SnapshotUnfit, save_base

MAX_BATCH = 512
"""Decisions in one transaction."""

ALONE = io.Timing(settle=0.0, lone=0.0)
"""A node without a cluster leads at once."""

logger = logging.getLogger("cuebook.journal")


class Append(NamedTuple):
    """A decision to commit.

    ``reply`` gets the Committed, or Rejected where the decision is a refusal, or Stopped where the journal
    ended or lost its office before it could say that the decision is on the disk. ``head`` is the seq that
    the log must end with before it: what the decision was based on.
    """

    draft: EncodedDraft
    head: int
    reply: Deferred[Committed]


class Flush(NamedTuple):
    """Ask for the head once everything before this message is committed."""


class Backfill(NamedTuple):
    """Take decisions from right before the log's base. Answered by the base then, None for no more.

    Fails as `EventLog.backfill` does.
    """

    entries: list[bytes]


class Lead(NamedTuple):
    """Here is the leader, in the term with this number."""

    epoch: int


class Follow(NamedTuple):
    """Another node leads."""

    leader: str


class Masterless(NamedTuple):
    """Nobody leads, for now."""


Role = Lead | Follow | Masterless


class Rewound(NamedTuple):
    """Some of this node's log lost against a longer one: it is in the newest of the rejected branches."""


class Standing(NamedTuple):
    """Who leads, which other nodes are there, and the bytes of the largest decision that is taken, 0: any."""

    role: Role
    peers: frozenset[str]
    max_entry: int = 0


class Listen(NamedTuple):
    """Ask for the `Standing`; ``listener`` is called with every new role and after every rewind."""

    listener: Callable[[Role | Rewound], None]


class Attach(NamedTuple):
    """The network is open: ``send(node_id, payload)`` reaches the journals of other nodes.

    ``ask_base(node_id)`` asks a node's archive, see `actors.joining`.
    """

    send: Callable[[str, bytes], bool]
    ask_base: Callable[[str], Deferred[bytes]]


class PeerUp(NamedTuple):
    """A node is there."""

    node_id: str


class PeerDown(NamedTuple):
    """A node is not there any more, or can't be reached."""

    node_id: str
    why: str


class FromPeer(NamedTuple):
    """A message of another node's journal."""

    node_id: str
    payload: bytes


class _Tick(NamedTuple):
    """The ordering core wants to look at the clock."""


class Journal(Actor):
    """Group commit: while one fsync runs the next batch gathers, so 64 producers cost one fsync."""

    def __init__(self, me: io.Member, paths: Paths, feed: CommitFeed, timing: io.Timing = ALONE) -> None:
        super().__init__()
        self._me = me
        self._paths = paths
        self._feed = feed
        self._timing = timing
        self._waiting: list[Append] = []
        self._role: Role = Masterless()
        self._listener: Callable[[Role | Rewound], None] | None = None
        self._send: Callable[[str, bytes], bool] | None = None
        self._newcomer: Newcomer | None = None
        self._timer: Timer | None = None
        self._peers: set[str] = set()

    def started(self) -> None:
        """Open the log, making it where there is none. Raises `events.errors.LogError`."""
        self._log = open_log(self._paths)
        self._ordered = OrderedLog(self._log, self._paths.driver)
        promised = _read_promise(self._promise_path)
        self._core = Core(self._me, promised, self._ordered, self.clock.monotonic(), self._timing)
        self._order(io.Tick())

    def stopping(self) -> None:
        """Commit what waits, unless a commit has just failed: those who wait learn that it has not been."""
        try:
            if not self._log.failed:
                self._commit()
        finally:
            for append in self._waiting:
                append.reply.fail(Stopped(self.name, "ended before this decision was committed"))
            self._ordered.close()
            self._log.close()

    def receive(self, message: Any) -> Any:
        """Take what is to be committed, what other journals say, and who is there.

        What waits is committed once nothing else does, or when it is a full batch.
        """
        answer = self._take(message)
        if self._waiting and (self.mailbox.empty() or len(self._waiting) >= MAX_BATCH):
            self._commit()
        return answer

    def _take(self, message: Any) -> Any:
        match message:
            case Append():
                self._append(message)
            case Flush():
                self._commit()
                return self._log.head
            case Listen():
                self._listener = message.listener
                return Standing(self._role, frozenset(self._peers))
            case FromPeer():
                self._order(io.Received(message.node_id, msg.decode(message.payload)))
            case PeerUp():
                self._peers.add(message.node_id)
                self._order(io.PeerUp(message.node_id))
            case PeerDown():
                self._peers.discard(message.node_id)
                self._order(io.PeerDown(message.node_id))
            case Attach():
                self._send = message.send
                self._newcomer = Newcomer(message.ask_base, self.mailbox.put_system)
            case Offered():
                self._offered(message)
            case Backfill():
                return self._backfill(message.entries)
            case _Tick():
                self._timer = None
                self._order(io.Tick())
            case _:
                raise TypeError(f"the journal takes no {type(message).__name__}")
        return None

    # What this node decides

    def _append(self, message: Append) -> None:
        if not isinstance(self._role, Lead):
            message.reply.fail(Stopped("the master", "leads no longer"))
        else:
            self._waiting.append(message)

    def _commit(self) -> None:
        if not self._waiting:
            return
        self._check_order(self._log.head)
        committed = self._log.append([append.draft for append in self._waiting])
        appends, self._waiting = self._waiting, []
        self._feed.publish(committed)
        for append, record in zip(appends, committed, strict=True):
            settle(append.reply, record)
        self._order(io.Committed(self._log.last_decision))

    def _check_order(self, head: int) -> None:
        """A decision made on another history than the log's must never get in, whoever made it."""
        for append in self._waiting:
            if append.head != head:
                raise JournalFailed(
                    f"A decision rests on event {append.head}, and the log is at {head}: its master is stale."
                )
            head += len(append.draft.bodies)

    # What the cluster agrees on

    def _order(self, event: io.Input) -> None:
        """Tell the core, do what follows, and see that it looks at the clock in time, or earlier."""
        for effect in self._core.handle(self.clock.monotonic(), event):
            self._carry_out(effect)
        deadline = self._core.next_deadline()
        if self._timer is None or self._timer.due > deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.after(max(0.0, deadline - self.clock.monotonic()), _Tick())

    def _carry_out(self, effect: io.Effect) -> None:
        match effect:
            case io.Persist(promised):
                # One that is forgotten could make two masters of one term.
                write_durably(self._promise_path, str(promised).encode())
            case io.Send(node_id, msg.Join() as join) if self._newcomer and self._log.last_decision == 0:
                self._newcomer.hold(node_id, join)
            case io.Send(node_id, message):
                if self._send is not None:
                    self._send(node_id, msg.encode(message))
            case io.Lead(epoch):
                self._take_role(Lead(epoch.n))
            case io.Follow(node_id, _):
                self._take_role(Follow(node_id))
            case io.Masterless():
                self._take_role(Masterless())
            case io.Append(entries):
                self._feed.publish(self._log.append_entries(entries))
            case io.Rewind():
                self._rewind(effect)
            case io.SetAside(why):
                self._set_aside(why)
            case io.Held():
                pass  # the core's book; nothing here waits for copies

    def _take_role(self, role: Role) -> None:
        if not isinstance(role, Lead):
            for append in self._waiting:
                append.reply.fail(Stopped("the master", "leads no longer"))
            self._waiting.clear()
        self._role = role
        logger.info("%s", role)
        if self._listener is not None:
            self._listener(role)

    def _rewind(self, effect: io.Rewind) -> None:
        """Give up what lost; it stays readable in its branch, which the master tells of."""
        epoch = effect.winner
        winner = f"{epoch.n}/{epoch.node_id}/{epoch.incarnation}"
        try:
            rewound = self._log.rewind(
                effect.fork, winner, effect.reason, effect.entries, at=self.clock.now()
            )
        except LogIncomplete as error:
            self._set_aside(str(error))
        self._feed.rewound(effect.fork, rewound.appended)
        if rewound.rejected and self._listener is not None:
            self._listener(Rewound())

    def _set_aside(self, why: str) -> NoReturn:
        mark_unusable(self._paths.log, why)
        raise JournalFailed(f"The node starts with an empty log. {why}")

    # A long log's new node

    def _offered(self, message: Offered) -> None:
        """Begin with what the master offers, and join; unless the log has begun otherwise by now."""
        entry = self._newcomer.answered(message) if self._newcomer is not None else None
        if entry is None or self._send is None or isinstance(self._role, Lead) or self._log.last_decision:
            return
        if entry.offer is not None:
            self._begin_after(entry.offer)
        join = msgspec.structs.replace(entry.join, runs=self._ordered.runs())
        self._send(entry.node_id, msg.encode(join))

    def _begin_after(self, offer: Offer) -> None:
        try:
            save_base(offer.snapshot, offer.base, self._paths.snapshots)
        except SnapshotUnfit as unfit:
            logger.warning("The whole log is taken from its beginning. %s", unfit)
            return
        self._log.begin_after(offer.base)
        self._feed.began(offer.base.decision_id)

    def _backfill(self, entries: list[bytes]) -> Deferred[Base | None]:
        answer = Deferred[Base | None]()
        try:
            answer.resolve(self._log.backfill(entries))
        except (EntriesRefused, LogTooNew, Unreadable) as error:
            answer.fail(error)  # the log is well
        return answer

    @property
    def _promise_path(self) -> Path:
        return self._paths.log.with_name("promised")


def settle(reply: Deferred[Committed], record: Committed) -> None:
    """Answer who asked, now that the decision is in the log."""
    if record.rejection is not None:
        reply.fail(Rejected(record.rejection))
    else:
        reply.resolve(record)


class JournalFailed(Exception):
    """The log can't be written, or was about to be written wrongly; everything restarts from the log."""


def _read_promise(path: Path) -> int:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
