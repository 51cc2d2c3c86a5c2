"""The journal of a cluster whose log is a stream of NATS JetStream; `ordering.leased` has the rules.

What this node decides is published first. Like what others decide, it comes into the log, to the feed and to
those who asked once the stream delivers it.

An empty log begins after a base where the stream is long, see `actors.joining`: what the stream delivers is
held back meanwhile, and then the stream is followed from the base on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from actors import archive
from actors.deferred import Deferred
from actors.jetstream.client import Failed, JetStream
from actors.joining import PATIENCE_S, RETRY_S, NotYet, Offer, Offered, Wait
from actors.journal import (
    Attach,
    Backfill,
    Flush,
    Follow,
    FromPeer,
    Journal,
    JournalFailed,
    Lead,
    Listen,
    PeerUp,
    Role,
    logger,
    settle,
)
from actors.log_aside import mark_unusable, open_log
from actors.log_view import OrderedLog
from actors.ordering import interface as io
from actors.ordering.leased import (
    Common,
    Delivered,
    Effect,
    Granted,
    Holder,
    Input,
    Leased,
    Lost,
    Publish,
    Resign,
)
from actors.refusal import Stopped
from actors.replica import Paths
from events.ends import EMPTY
from events.errors import LogIncomplete
from events.feed import CommitFeed
from events.proposals import propose
from events.record import Committed


class _Seek(NamedTuple):
    """Ask for a base again."""


class _Expired(NamedTuple):
    """An empty log has waited for a base for long enough."""


class StreamedJournal(Journal):
    """``connect`` makes a client for each life of the journal."""

    def __init__(
        self, me: io.Member, paths: Paths, feed: CommitFeed, connect: Callable[[], JetStream]
    ) -> None:
        super().__init__(me, paths, feed)
        self._connect = connect
        self._ahead = EMPTY
        self._proposed: dict[str, Deferred[Committed]] = {}
        self._flushes: list[Deferred[int]] = []
        self._ask_base: Callable[[str], Deferred[bytes]] | None = None
        self._wait: Wait | None = None
        self._held: Delivered | None = None
        self._compares = False
        self._ends = 0
        self._lags = False

    def started(self) -> None:
        """Open the log and compare it with the stream.

        Raises `events.errors.LogError` or `net.transport.TransportError`.
        """
        try:
            common = self._open()
        except LogIncomplete as error:
            mark_unusable(self._paths.log, str(error))
            common = self._open()
        self._ordered = self._view()
        self._leased = Leased(self._me, self._ordered, common)
        self._compared(common)
        if not self._log.last_decision and common.ends >= archive.LONG:
            self._wait = Wait(self.mailbox.put_system)
            self.after(PATIENCE_S, _Expired())

    def _open(self) -> Common:
        self._log = open_log(self._paths)
        self._stream = self._connect()
        try:
            return self._stream.start(self._me, self._view, self.mailbox.put_system)
        except BaseException:
            self._log.close()
            raise

    def _view(self) -> OrderedLog:
        return OrderedLog(self._log, self._paths.driver)

    def stopping(self) -> None:
        """Give back the lease. Whether what was published got into the log is for others to say."""
        self._stream.stop()
        self._give_up(Stopped(self.name, "ended before it knew that this decision counts"))
        super().stopping()

    def _take(self, message: Any) -> Any:
        match message:
            case Delivered():
                self._delivered(message)
            case Common():
                self._advance(message)
                self._compared(message)
            case Granted() | Lost() | Holder():
                self._advance(message)
                self._seek_base()
            case Failed():
                raise JournalFailed(f"The stream can't be followed: {message.error}") from message.error
            case Flush():
                self._commit()
                return self._flushed()
            case Listen():
                return super()._take(message)._replace(max_entry=self._stream.max_entry)
            case Backfill():
                answer = super()._take(message)
                self._see_lag()
                return answer
            case archive.PastWanted(upto):
                return self._stream.past(upto)
            case Attach():
                super()._take(message)
                self._ask_base = message.ask_base
                self._seek_base()
            case PeerUp():
                super()._take(message)
                self._seek_base()
            case _Seek():
                self._seek_base()
            case _Expired():
                if self._wait is not None and self._wait.expired():
                    self._begin_with(None)
            case FromPeer():
                logger.warning("%s speaks of the order of the log, which NATS gives here", message.node_id)
            case _:
                return super()._take(message)
        return None

    def _order(self, event: io.Input) -> None:
        """Which nodes can be reached matters to the mesh's order only."""

    def _advance(self, event: Input) -> None:
        for effect in self._leased.handle(event):
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Publish():
                self._stream.publish(effect)
            case Resign(term, why):
                logger.warning("The lease of term %d is given up: %s", term, why)
                self._stream.resign(term)
            case io.Append(entries):
                self._append_entries(entries)
            case _:
                self._carry_out(effect)

    def _delivered(self, message: Delivered) -> None:
        if self._wait is not None:
            self._held = message
            return
        if not self._compares:  # else it is of no use, but the client waits for its answer
            self._advance(message)
            self._see_lag()
        self._stream.taken()

    def _compared(self, common: Common) -> None:
        self._compares, self._ends, self._lags = False, common.ends, True
        self._see_lag()

    def _see_lag(self) -> None:
        """A node without the whole log, be it without its newest part or its past, lets others lead."""
        if self._lags:
            self._lags = self._log.last_decision < self._ends or self._ordered.begins() > 0
            self._stream.hesitate(self._lags)

    # A long stream's new node

    def _seek_base(self) -> None:
        """Ask who leads, once it can be reached."""
        role = self._role
        if self._wait is None or self._ask_base is None or not isinstance(role, Follow):
            return
        if role.leader in self._peers:
            self._wait.seek(partial(self._ask_base, role.leader))

    def _offered(self, message: Offered) -> None:
        if self._wait is None:
            return
        try:
            offer = self._wait.answered(message)
        except NotYet:
            self.after(RETRY_S, _Seek())
        else:
            self._begin_with(offer)

    def _begin_with(self, offer: Offer | None) -> None:
        """Begin after the base where there is one that fits, else with all that the stream has."""
        self._wait = None
        if offer is not None:
            self._begin_after(offer)
        held, self._held = self._held, None
        if self._log.last_decision:
            self._compares = True
            self._stream.begun()
        elif held is not None:
            self._delivered(held)

    # What this node decides

    def _commit(self) -> None:
        """Publish what waits."""
        if not self._waiting:
            return
        self._check_order(self._ahead.seq)
        self._check_new([append.draft.command_id for append in self._waiting])
        entries, end = propose([append.draft for append in self._waiting], self._ahead)
        largest = max(map(len, entries))
        if largest > self._stream.max_entry:
            raise JournalFailed(
                f"A decision of {largest} bytes is larger than what the NATS servers take: raise their "
                "max_payload."
            )
        self._stream.publish(self._leased.publication(entries))
        self._ahead = end
        self._proposed |= {append.draft.command_id: append.reply for append in self._waiting}
        self._waiting.clear()

    def _check_new(self, command_ids: list[str]) -> None:
        """A command that came into the stream twice would stop every node."""
        again = self._log.decided(command_ids).keys() | (self._proposed.keys() & set(command_ids))
        if again or len(set(command_ids)) < len(command_ids):
            raise JournalFailed(f"Commands were decided on twice, of {len(command_ids)}: {sorted(again)}.")

    def _append_entries(self, entries: list[bytes]) -> None:
        """The stream has gone on."""
        committed = self._log.append_entries(entries)
        self._feed.publish(committed)
        for record in committed:
            reply = self._proposed.pop(record.command_id, None)
            if reply is not None:
                settle(reply, record)
        self._settle_flushes()

    def _flushed(self) -> Deferred[int]:
        flushed = Deferred[int]()
        self._flushes.append(flushed)
        self._settle_flushes()
        return flushed

    def _settle_flushes(self) -> None:
        if not self._proposed:
            for flushed in self._flushes:
                flushed.resolve(self._log.head)
            self._flushes.clear()

    def _take_role(self, role: Role) -> None:
        self._ahead = self._log.tail
        if not isinstance(role, Lead):
            self._give_up(Stopped("the master", "leads no longer"))
        super()._take_role(role)

    def _give_up(self, why: Stopped) -> None:
        """What is under way may yet get into the log; those who ask again are told."""
        waiting = [append.reply for append in self._waiting]
        for reply in (*self._proposed.values(), *waiting):
            reply.fail(why)
        self._proposed.clear()
        self._waiting.clear()
        self._settle_flushes()
