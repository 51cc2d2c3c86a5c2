"""The journal of a cluster whose log is a stream of NATS JetStream; `ordering.leased` has the rules.

What this node decides is published first. Like what others decide, it comes into the log, to the feed and to
those who asked once the stream delivers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.deferred import Deferred
from actors.jetstream.client import Failed, JetStream
from actors.journal import Flush, FromPeer, Journal, JournalFailed, Lead, Role, logger, settle
from actors.log_aside import open_log
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
from events.feed import CommitFeed
from events.proposals import propose
from events.record import Committed


class StreamedJournal(Journal):
    """``connect`` makes a client for each life of the journal."""

    def __init__(
        self, me: io.Member, paths: Paths, feed: CommitFeed, connect: Callable[[], JetStream]
    ) -> None:
        super().__init__(me, paths, feed)
        self._stream = connect()
        self._ahead = EMPTY
        self._proposed: dict[str, Deferred[Committed]] = {}
        self._flushes: list[Deferred[int]] = []

    def started(self) -> None:
        """Open the log and compare it with the stream.

        Raises `events.errors.LogError` or `net.transport.TransportError`.
        """
        self._log = open_log(self._paths)
        try:
            common = self._stream.start(self._me, self._view, self.mailbox.put_system)
        except BaseException:
            self._log.close()
            raise
        self._ordered = self._view()
        self._leased = Leased(self._me, self._ordered, common)

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
                self._advance(message)
                self._stream.taken()
            case Common() | Granted() | Lost() | Holder():
                self._advance(message)
            case Failed():
                raise JournalFailed(f"The stream can't be followed: {message.error}") from message.error
            case Flush():
                self._commit()
                return self._flushed()
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
            case Resign(term):
                self._stream.resign(term)
            case io.Append(entries):
                self._append_entries(entries)
            case _:
                self._carry_out(effect)

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
