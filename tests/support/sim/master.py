"""The master of a node that leads: the real decider over commands and reports, and reconciliation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from support.sim.disk import Decision

from actors import decider
from actors.ordering.epochs import Epoch
from actors.refusal import Rejected
from events import commands as cmd
from events.base import Command, Event, Report
from events.commands import Facts
from events.record import Draft
from events.values import Cause, Policy

if TYPE_CHECKING:
    from support.sim.node import Node

POLICY = Policy(max_instance_retries=3, backoff_base_s=0.2, backoff_cap_s=1.0)
NODE_GRACE_S = 1.5
PATROL_S = 0.25


class Answer(NamedTuple):
    """What came of a command; no decision where a report was no news.

    Given on the log up to index ``upto`` of the master of ``epoch``.
    """

    decision: Decision | None
    epoch: Epoch
    upto: int


class Master:
    """In office for one epoch."""

    def __init__(self, node: Node, epoch: Epoch) -> None:
        self._node = node
        self._epoch = epoch
        self._in_office = False

    def take_office(self) -> None:
        """Begin the epoch in the log, then look after what is wanted."""
        node = self._node
        if node.master is not self:
            return
        self._in_office = True
        epoch = f"epoch-{self._epoch.n}-{node.node_id}-{node.incarnation}"
        self._decide(cmd.StartEpoch(command_id=epoch, node_id=node.node_id, incarnation=node.incarnation))
        for node_id in list(node.state.nodes):
            self.misses(node_id)
        node.worker.say_again()
        self._patrol()

    def ask(self, command: Command) -> Answer | None:
        """Decide, or repeat the first answer. None before the epoch has begun."""
        if not self._in_office:
            return None
        decision = self._node.disk.commands.get(command.command_id) or self._decide(command)
        return Answer(decision, self._epoch, len(self._node.disk.rows))

    def misses(self, node_id: str) -> None:
        """A node is out of reach: it is lost if it stays so."""
        self._node.after(NODE_GRACE_S, self._report_missing, node_id)

    def _decide(self, command: Command) -> Decision | None:
        node = self._node
        seed = f"{node.world.random.getrandbits(48):x}"
        facts = Facts(now=node.wall(), seed=seed, epoch=self._epoch.n, node_id=node.node_id)
        events: list[Event] = []
        rejection: Cause | None = None
        try:
            events = decider.decide(node.state, command, facts)
        except Rejected as refusal:
            rejection = refusal.cause
        if isinstance(command, Report) and not events and rejection is None:
            return None
        draft = Draft(
            command=command,
            facts=facts,
            decider=decider.NAME,
            decider_version=decider.VERSION,
            events=events,
            rejection=rejection,
        )
        decision = Decision(len(node.disk.rows) + 1, self._epoch, draft)
        node.commit(decision)
        return decision

    def _report_missing(self, node_id: str) -> None:
        node = self._node
        known = node.state.nodes.get(node_id)
        if node.master is not self or known is None or not known.up:
            return
        if node_id == node.node_id or node_id in node.peers:
            return
        node.checks.lost_node(node_id, really=not node.network.lives(node_id, known.incarnation))
        self._decide(
            cmd.ReportNodeLost(
                command_id=f"lost-{self._epoch.n}-{node.node_id}-{node.world.random.getrandbits(48):x}",
                origin=node.node_id,
                node_id=node_id,
                incarnation=known.incarnation,
                cause=Cause(code="node_lost", message=f"Node {node_id} has not been heard."),
                policy=POLICY,
            )
        )

    def _patrol(self) -> None:
        """Place what waits and is due."""
        node = self._node
        if node.master is not self:
            return
        now = node.wall()
        if any(known.up for known in node.state.nodes.values()):
            for instance in list(node.state.instances.values()):
                if instance.status == "waiting" and instance.retry_at <= now:
                    command_id = f"reconcile-{node.world.random.getrandbits(48):x}"
                    self._decide(
                        cmd.ReconcileInstance(
                            command_id=command_id, instance_id=instance.instance_id, policy=POLICY
                        )
                    )
        node.after(PATROL_S, self._patrol)
