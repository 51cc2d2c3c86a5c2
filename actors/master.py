"""The master: runs the decider over commands and reports, and reconciles what is wanted with what is so.

It decides on its own state, which is ahead of the log by what the journal has yet to commit; so the next
decision need not wait for the last one's fsync. Answers go out after the commit. If a commit fails, the
journal and the master both restart from the log.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any, NamedTuple

from actors import decider
from actors.actor import Actor
from actors.address import Address
from actors.clock import Timer
from actors.deferred import Deferred
from actors.journal import Append, Flush
from actors.refusal import Rejected
from actors.replica import Paths
from events import commands as cmd
from events.base import Command, Event, Report
from events.commands import Facts, Policy
from events.errors import DraftRefused
from events.ids import fresh
from events.record import Committed, Draft
from events.to_rows import EncodedDraft
from events.values import Cause
from projections.evolve import apply
from projections.snapshot import load_state

logger = logging.getLogger("cuebook.master")

FLUSH_TIMEOUT_S = 60.0
MAX_IN_FLIGHT = 4096
"""Decisions on their way to the disk at which the master waits for it: fewer than the journal's mailbox
holds, so that a slow disk fills the master's own mailbox, whose senders are then told."""


class Wake(NamedTuple):
    """A deadline is due: reconcile."""


class Master(Actor):
    """The one decider of a cluster. Ask it any `events.commands` command; the answer is its Committed.

    A rejected command raises `Rejected`; a report that changes nothing answers None.
    """

    def __init__(
        self, node_id: str, incarnation: str, journal: Address, paths: Paths, policy: Policy
    ) -> None:
        super().__init__()
        self._node_id = node_id
        self._incarnation = incarnation
        self._journal = journal
        self._paths = paths
        self._policy = policy
        self._in_flight: dict[str, _Pending] = {}
        self._timer: Timer | None = None

    def started(self) -> None:
        """Rebuild the state from the log, then take office in a new epoch if this process has not yet."""
        self._journal.ask(Flush(), FLUSH_TIMEOUT_S)
        self._reader = self._paths.reader()
        self._state = load_state(self._reader, self._paths.snapshots)
        start = cmd.StartEpoch(
            command_id=f"epoch-{self._incarnation}", node_id=self._node_id, incarnation=self._incarnation
        )
        if self._reader.decision_of(start.command_id) is None:
            self._decide(start, epoch=self._state.epoch + 1)
        self._reconcile()

    def stopping(self) -> None:
        """Close the file."""
        self._reader.close()

    def receive(self, message: Any) -> Any:
        """Decide a command, or reconcile when woken."""
        if isinstance(message, Wake):
            self._reconcile()
            return None
        return self._answer(message)

    def _answer(self, command: Command) -> Deferred[Committed] | Committed | None:
        pending = self._in_flight.get(command.command_id)
        if pending is not None:
            _check_same(pending.command, command, "which is being decided")
            return pending.reply
        first = self._reader.decision_of(command.command_id)
        if first is not None:
            return _repeat(first, command)
        reply = self._decide(command, epoch=self._state.epoch)
        self._reconcile()
        return reply

    def _decide(self, command: Command, *, epoch: int) -> Deferred[Committed] | None:
        """Decide and send to the journal. The state is moved on at once, see the module's docstring."""
        facts = Facts(now=self.clock.now(), seed=secrets.token_hex(12), epoch=epoch, node_id=self._node_id)
        rejection: Cause | None = None
        events: list[Event] = []
        try:
            events = decider.decide(self._state, command, facts)
        except Rejected as refusal:
            rejection = refusal.cause
        if isinstance(command, Report) and not events and rejection is None:
            return None
        return self._append(command, facts, events, rejection)

    def _append(
        self, command: Command, facts: Facts, events: list[Event], rejection: Cause | None
    ) -> Deferred[Committed]:
        draft = Draft(
            command=command,
            facts=facts,
            decider=decider.NAME,
            decider_version=decider.VERSION,
            events=events,
            rejection=rejection,
        )
        encoded = _encoded(draft)
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            self._journal.ask(Flush(), FLUSH_TIMEOUT_S)
        reply = Deferred[Committed]()
        self._in_flight[command.command_id] = _Pending(command, reply)
        reply.add_done_callback(lambda _: self._in_flight.pop(command.command_id, None))
        self._journal.tell(Append(encoded, self._state.seq, reply))
        for event in events:
            apply(self._state, self._state.seq + 1, facts.epoch, facts.now, event)
        return reply

    def _reconcile(self) -> None:
        """Place every waiting instance that is due, then sleep until the next one is."""
        while (instance_id := self._due()) is not None:
            command = cmd.ReconcileInstance(
                command_id=fresh("reconcile"), instance_id=instance_id, policy=self._policy
            )
            self._decide(command, epoch=self._state.epoch)
        self._sleep()

    def _due(self) -> str | None:
        if not any(node.up for node in self._state.nodes.values()):
            return None
        now = self.clock.now()
        for instance in self._state.instances.values():
            if instance.status == "waiting" and instance.retry_at <= now:
                return instance.instance_id
        return None

    def _sleep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [i.retry_at for i in self._state.instances.values() if i.status == "waiting"]
        if waiting and any(node.up for node in self._state.nodes.values()):
            self._timer = self.after(max(0.0, min(waiting) - self.clock.now()), Wake())


class _Pending(NamedTuple):
    """A command that is decided and on its way to the disk."""

    command: Command
    reply: Deferred[Committed]


def _encoded(draft: Draft) -> EncodedDraft:
    """The draft as text, before anything rests on it. Raises `Rejected` for what no log can hold."""
    try:
        return EncodedDraft(draft)
    except DraftRefused as error:
        logger.exception("A command or report is refused")
        raise Rejected(Cause(code="not_recordable", message=str(error))) from error


def _repeat(first: Committed, command: Command) -> Committed:
    """The first answer to a repeated command. Raises `Rejected` where it was refused, or is another one."""
    _check_same(first.command, command, f"decision {first.decision_id}")
    if first.rejection is not None:
        raise Rejected(first.rejection)
    return first


def _check_same(first: Command, command: Command, where: str) -> None:
    if first != command:
        message = (
            f"{command.command_id} was the key of another request, {where}: use a new key for a new request."
        )
        raise Rejected(Cause(code="idempotency_key_reused", message=message))
