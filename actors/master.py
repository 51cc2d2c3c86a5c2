"""The master: where commands are decided, or passed on to where they are.

Every node has one. The journal says which of them leads. The leading one runs the decider and reconciles
what is wanted with what is so; the others pass commands on to it and answer when the decision has come with
the log. A command that nobody can decide now waits, for a while, for a leader.

The leader decides on its own state, which is ahead of the log by what the journal has yet to commit; so the
next decision need not wait for the last one's fsync. Answers go out after the commit. If a commit fails, the
journal and the master both restart from the log.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from actors import decider
from actors.actor import Actor
from actors.address import Address
from actors.clock import Timer
from actors.deferred import Deferred
from actors.handed_over import HandedOver, Waiting
from actors.idempotency import check_same, first_answer
from actors.journal import (
    Append,
    Flush,
    Follow,
    Lead,
    Listen,
    Masterless,
    PeerDown,
    PeerUp,
    Rewound,
    Role,
    Standing,
)
from actors.mailbox import RETRY_AFTER_S
from actors.recordable import encoded_draft, not_recordable
from actors.refusal import MailboxFull, Rejected
from actors.remote import Unchanged, decode_answer, encode_command
from actors.replica import Paths
from actors.router import Forward
from events import commands as cmd
from events.base import Command, Event, Report
from events.commands import Facts
from events.feed import CommitFeed
from events.ids import fresh, fresh_seed
from events.record import Committed, Draft
from events.values import Cause, Policy
from projections.evolve import apply
from projections.snapshot import load_state
from projections.state import ClusterState

FLUSH_TIMEOUT_S = 60.0
MAX_IN_FLIGHT = 4096
"""Decisions on their way to the disk at which the master waits for it: fewer than the journal's mailbox
holds, so that a slow disk fills the master's own mailbox, whose senders are then told."""
PATIENCE_S = 25.0
"""Seconds that a command waits for a leader and for its answer."""
RESEND_S = 1.0
"""Seconds after which a command that another master could not take is sent again."""
NODE_GRACE_S = 1.5
"""Seconds that a node may be out of reach before what it runs is placed elsewhere."""


class Wake(NamedTuple):
    """A deadline is due: reconcile."""


class _Answered(NamedTuple):
    """The leader's word on a command that was passed on, while this master had its ``term``-th role."""

    command_id: str
    term: int
    reply: Deferred[bytes]


class _Resend(NamedTuple):
    """Pass on again what has no answer yet."""


class _Missing(NamedTuple):
    """A node's grace is over."""

    node_id: str


class _Pending(NamedTuple):
    """A command that is decided here and on its way to the disk."""

    command: Command
    reply: Deferred[Committed]


class Master(Actor):
    """One for each node. Ask it any `events.commands` command; the answer is its Committed.

    A rejected command raises `Rejected`; a report that changes nothing answers `Unchanged`. Either rests only
    on what the log of this node has, as whoever asked will not ask again. Without a leader the answer is
    `Stopped` after `PATIENCE_S`.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: str,
        journal: Address,
        router: Address,
        paths: Paths,
        feed: CommitFeed,
        policy: Policy,
    ) -> None:
        super().__init__()
        self._node_id = node_id
        self._incarnation = incarnation
        self._journal = journal
        self._router = router
        self._paths = paths
        self._feed = feed
        self._policy = policy
        self._state: ClusterState | None = None
        self._leader = ""
        self._term = 0
        self._peers: set[str] = set()
        self._max_entry = 0
        self._in_flight: dict[str, _Pending] = {}
        self._newest: Deferred[Committed] | None = None
        """The answer to the last decision made here; all before it are answered earlier."""
        self._waiting = HandedOver(lambda: self._reader.head())
        self._timer: Timer | None = None

    def started(self) -> None:
        """Learn who leads, and follow the log."""
        self._reader = self._paths.reader()
        self._subscription = self._feed.subscribe(
            self._reader.last_decision(),
            self.mailbox.put_system,
            lambda _: None,  # a master that follows has no state that could be void
        )
        standing: Standing = self.ask(self._journal, Listen(self.mailbox.put_system), FLUSH_TIMEOUT_S)
        self._peers = set(standing.peers)
        self._max_entry = standing.max_entry
        self._take_role(standing.role)

    def stopping(self) -> None:
        """Leave the feed and close the file."""
        self._subscription.close()
        self._reader.close()

    def receive(self, message: Any) -> Any:
        """Take a command, a change of the leader, the log's growth, or a timer."""
        match message:
            case Command():
                return self._answer(message)
            case Lead() | Follow() | Masterless():
                self._take_role(message)
            case Rewound():
                self._report_branches()
            case PeerUp():
                self._peers.add(message.node_id)
            case PeerDown():
                self._peers.discard(message.node_id)
                self.after(NODE_GRACE_S, _Missing(message.node_id))
            case _Missing():
                self._report_missing(message.node_id)
            case _Answered():
                self._answered(message)
            case _Resend():
                self._resend()
            case Wake():
                self._reconcile()
            case _:
                self._waiting.learn(message)
        return None

    # Roles

    def _take_role(self, role: Role) -> None:
        self._term += 1
        self._newest = None
        if isinstance(role, Lead):
            self._lead(role.epoch)
        else:
            self._state = None
            self._leader = role.leader if isinstance(role, Follow) else ""
        self._waiting.begin_anew()
        self._pass_on()
        self._report_branches()

    def _lead(self, epoch: int) -> None:
        """Rebuild the state from the log and take office, once in this term."""
        self.ask(self._journal, Flush(), FLUSH_TIMEOUT_S)
        self._leader = ""
        self._state = load_state(self._reader, self._paths.snapshots)
        if self._state.epoch < epoch:
            start = cmd.StartEpoch(
                command_id=f"epoch-{epoch}-{self._node_id}-{self._incarnation}",
                node_id=self._node_id,
                incarnation=self._incarnation,
            )
            self._decide(self._state, start, epoch=epoch)
        for node_id in list(self._state.nodes):
            self.after(NODE_GRACE_S, _Missing(node_id))
        self._reconcile()

    # Commands

    def _answer(
        self, command: Command
    ) -> Deferred[Committed] | Deferred[Committed | Unchanged] | Deferred[Unchanged] | Committed:
        pending = self._in_flight.get(command.command_id)
        if pending is not None:
            check_same(pending.command, command, "which is being decided")
            return pending.reply
        first = self._reader.decision_of(command.command_id)
        if first is not None:
            return first_answer(first, command)
        if self._state is None:
            if self._waiting.refuses(command):
                full = Deferred[Committed]()
                full.fail(MailboxFull(self.name, RETRY_AFTER_S))
                return full
            return self._hand_over(command)
        state = self._state
        reply = self._decide(state, command, epoch=state.epoch) or self._unchanged(state)
        self._reconcile()
        return reply

    def _unchanged(self, state: ClusterState) -> Deferred[Unchanged]:
        """The answer to a report without news, once all that it rests on is on the disk."""
        answer = Deferred[Unchanged]()
        unchanged = Unchanged(state.seq)
        newest = self._newest
        if newest is None:
            answer.resolve(unchanged)
            return answer

        def settle(done: Deferred[Committed]) -> None:
            if done.error is None or isinstance(done.error, Rejected):
                answer.resolve(unchanged)
            else:
                answer.fail(done.error)

        newest.add_done_callback(settle)
        return answer

    def _decide(self, state: ClusterState, command: Command, *, epoch: int) -> Deferred[Committed] | None:
        """Decide and send to the journal. The state is moved on at once, see the module's docstring."""
        facts = Facts(now=self.clock.now(), seed=fresh_seed(), epoch=epoch, node_id=self._node_id)
        rejection: Cause | None = None
        events: list[Event] = []
        try:
            events = decider.decide(state, command, facts)
        except Rejected as refusal:
            rejection = refusal.cause
        if isinstance(command, Report) and not events and rejection is None:
            return None
        return self._append(state, command, facts, events, rejection)

    def _append(
        self,
        state: ClusterState,
        command: Command,
        facts: Facts,
        events: list[Event],
        rejection: Cause | None,
    ) -> Deferred[Committed]:
        draft = Draft(
            command=command,
            facts=facts,
            decider=decider.NAME,
            decider_version=decider.VERSION,
            events=events,
            rejection=rejection,
        )
        encoded = encoded_draft(draft, self._max_entry)
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            self.ask(self._journal, Flush(), FLUSH_TIMEOUT_S)
        reply = Deferred[Committed]()
        self._newest = reply
        self._in_flight[command.command_id] = _Pending(command, reply)
        reply.add_done_callback(lambda _: self._in_flight.pop(command.command_id, None))
        self._journal.tell(Append(encoded, state.seq, reply))
        for event in events:
            apply(state, state.seq + 1, facts.epoch, facts.now, event)
        return reply

    # Commands for another master

    def _hand_over(self, command: Command) -> Deferred[Committed | Unchanged]:
        waiting = self._waiting.find(command)
        if waiting is None:
            if not self._waiting:
                self.after(RESEND_S, _Resend())
            waiting = self._waiting.add(command, self.clock.monotonic() + PATIENCE_S)
            self._pass_on()
        return waiting.reply

    def _pass_on(self) -> None:
        """To the leader, or to our own decider where that is us by now; else they wait for a leader."""
        if self._state is not None:
            self._waiting.pass_on(self._settle_here)
        elif self._leader:
            self._waiting.pass_on(self._forward)

    def _forward(self, waiting: Waiting) -> bool:
        """Send to the leader. False where the router has no room: then it goes with the next `_Resend`."""
        command = waiting.command
        try:
            reply = self._router.ask_future(Forward(self._leader, encode_command(command), PATIENCE_S))
        except MailboxFull:
            return False
        except UnicodeError as error:
            self._waiting.remove(waiting)
            waiting.reply.fail(not_recordable(error))
            return True
        self._waiting.sent(waiting, self.clock.monotonic())
        answered = partial(_Answered, command.command_id, self._term)
        reply.add_done_callback(lambda done: self.mailbox.put_system(answered(done)))
        return True

    def _settle_here(self, waiting: Waiting) -> bool:
        self._waiting.remove(waiting)
        try:
            answer = self._answer(waiting.command)
        except Rejected as refusal:
            waiting.reply.fail(refusal)
            return True
        if not isinstance(answer, Deferred):
            waiting.reply.resolve(answer)
            return True

        def settle(done: Deferred[Any]) -> None:
            waiting.reply.resolve(done.get()) if done.error is None else waiting.reply.fail(done.error)

        answer.add_done_callback(settle)
        return True

    def _answered(self, message: _Answered) -> None:
        """What fails is passed on again; what comes after a change of the leader, has been already."""
        if message.term != self._term:
            return
        self._waiting.returned(message.command_id)
        if message.reply.error is None:
            self._waiting.answered(message.command_id, decode_answer(message.reply.get()))
        self._pass_on()

    def _resend(self) -> None:
        self._waiting.expire(self.clock.monotonic())
        self._pass_on()
        if self._waiting:
            self.after(RESEND_S, _Resend())

    def _report_branches(self) -> None:
        """What this node's side decided and lost is told to the whole cluster, by the winner's log.

        Told it is once the log has the report. A log that had it may lose in its turn, and a node may die
        before it has told, so this is looked at with each new leader.
        """
        if self._state is None and not self._leader:
            return
        for branch in self._reader.branches():
            report_id = f"branch-{self._node_id}-{branch.branch}-{branch.winner}"
            if self._reader.decision_of(report_id) is None:
                self._hand_over(
                    cmd.ReportBranch(
                        command_id=report_id,
                        origin=self._node_id,
                        fork=branch.fork,
                        winner=branch.winner,
                        reason=branch.reason,
                        command_ids=self._reader.rejected_commands(branch.branch),
                    )
                )

    # Reconciliation

    def _report_missing(self, node_id: str) -> None:
        """Take a node that is not there after its grace as lost."""
        state = self._state
        node = state.nodes.get(node_id) if state is not None else None
        if state is None or node is None or not node.up or node_id in (self._node_id, *self._peers):
            return
        report = cmd.ReportNodeLost(
            command_id=fresh("report"),
            origin=self._node_id,
            node_id=node_id,
            incarnation=node.incarnation,
            cause=Cause(
                code="node_lost", message=f"Node {node_id} has not been heard for {NODE_GRACE_S:g} s."
            ),
            policy=self._policy,
        )
        self._decide(state, report, epoch=state.epoch)
        self._reconcile()

    def _reconcile(self) -> None:
        """Place every waiting instance that is due, then sleep until the next one is."""
        state = self._state
        if state is None:
            return
        while (instance_id := self._due(state)) is not None:
            command = cmd.ReconcileInstance(
                command_id=fresh("reconcile"), instance_id=instance_id, policy=self._policy
            )
            self._decide(state, command, epoch=state.epoch)
        self._sleep(state)

    def _due(self, state: ClusterState) -> str | None:
        if not any(node.up for node in state.nodes.values()):
            return None
        now = self.clock.now()
        for instance in state.instances.values():
            if instance.status == "waiting" and instance.retry_at <= now:
                return instance.instance_id
        return None

    def _sleep(self, state: ClusterState) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [i.retry_at for i in state.instances.values() if i.status == "waiting"]
        if waiting and any(node.up for node in state.nodes.values()):
            self._timer = self.after(max(0.0, min(waiting) - self.clock.now()), Wake())
