"""The EPLB controller: one for each instance whose experts are balanced, on the node that leads.

It is who asks for decisions: weigh this window, this layer is overdue. What is decided, and the whole of a
migration, is in the log; so a controller that crashed, or one on another node, goes on where the log stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.address import Address
from actors.clock import Timer
from actors.deciding.experts import deadline
from actors.deferred import Deferred
from actors.refusal import MailboxFull
from actors.replica import Paths, fold, follow
from events.base import Command
from events.expert_commands import ExpireMigration, Rebalance
from events.experts import EplbSettings
from events.feed import CommitFeed
from events.ids import fresh
from events.record import Committed
from events.values import Cause, Policy
from projections.state import ClusterState, Migration

AGAIN_S = 1.0
"""Seconds before something is asked for again that the master did not take, or made nothing of."""


class Errand(NamedTuple):
    """What to ask the master for, and when (Unix seconds). ``key`` tells it from all others."""

    key: tuple[str | int, ...]
    at: float
    command: Command


def errand(state: ClusterState, instance_id: str, policy: Policy, begun: float) -> Errand | None:
    """The next thing that a decision is due on, now or later.

    The controller looks on since ``begun`` (Unix seconds). Before that nobody may have been there to decide
    on what ranks and nodes reported: each limit holds from then on once more.
    """
    instance, experts = state.instances.get(instance_id), state.experts.get(instance_id)
    placement = instance.placement if instance is not None and instance.status == "ready" else None
    if experts is None or placement is None or placement.eplb is None:
        return None
    if experts.migration is not None:
        return _overdue(instance_id, placement.eplb, experts.migration, policy, begun)
    if experts.load is None:
        return None
    window = experts.load.window
    command = Rebalance(command_id=fresh("rebalance"), instance_id=instance_id, window=window)
    return Errand(("weigh", placement.ranks[0].runner_id, window), 0.0, command)


def _overdue(
    instance_id: str, eplb: EplbSettings, migration: Migration, policy: Policy, begun: float
) -> Errand:
    layer = migration.layers[migration.position].layer
    staging = migration.stage == "staging"
    limit = eplb.stage_timeout_s if staging else eplb.apply_timeout_s
    cause = Cause(
        code="deadline_missed",
        message=f"Not all ranks had {'staged' if staging else 'applied'} layer {layer} within {limit:g} s.",
        detail={"layer": layer, "stage": migration.stage, "limit_s": limit},
    )
    command = ExpireMigration(
        command_id=fresh("expire"),
        instance_id=instance_id,
        migration_id=migration.migration_id,
        layer=layer,
        cause=cause,
        policy=policy,
    )
    key = ("expire", migration.migration_id, layer, migration.stage)
    return Errand(key, max(deadline(eplb, migration), begun + limit), command)


class _Look(NamedTuple):
    """Something may be due."""


class _Answered(NamedTuple):
    """The master's word on an errand."""

    key: tuple[str | int, ...]
    answer: Deferred[Committed]


class _Rewound(NamedTuple):
    """The log went back to a fork: the state is another one."""


class Controller(Actor):
    """Follows the log, and has at most one question open with the master."""

    def __init__(
        self, instance_id: str, policy: Policy, paths: Paths, feed: CommitFeed, master: Address
    ) -> None:
        super().__init__()
        self._instance_id = instance_id
        self._policy = policy
        self._paths = paths
        self._feed = feed
        self._master = master
        self._asking = False
        self._done: tuple[str | int, ...] = ()
        """The last errand of which something was made; its events are here, or on their way."""
        self._not_before = 0.0
        self._timer: Timer | None = None

    def started(self) -> None:
        """Take up what the log has: a window to weigh, a migration to watch."""
        self._begun = self.clock.now()
        self._state, self._follower = follow(
            self._paths, self._feed, self.mailbox.put_system, lambda _: self.mailbox.put_system(_Rewound())
        )
        self.mailbox.put_system(_Look())

    def stopping(self) -> None:
        """Leave the feed."""
        self._follower.close()

    def receive(self, message: Any) -> None:
        """Take decisions of the feed, answers and timers; then ask for what is due."""
        match message:
            case _Look():
                pass
            case _Answered():
                self._answered(message)
            case _Rewound():
                self._reload()
            case _:
                self._learn(message)
        self._act()

    def _learn(self, committed: Sequence[Committed]) -> None:
        if self._follower.take():
            fold(self._state, committed)

    def _reload(self) -> None:
        self._state = self._follower.load()
        self._done = ()

    def _act(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = errand(self._state, self._instance_id, self._policy, self._begun)
        if due is None or self._asking or due.key == self._done:
            return
        wait = max(due.at, self._not_before) - self.clock.now()
        if wait > 0:
            self._timer = self.after(wait, _Look())
        else:
            self._ask(due)

    def _ask(self, due: Errand) -> None:
        try:
            answer = self._master.ask_future(due.command)
        except MailboxFull:
            self._not_before = self.clock.now() + AGAIN_S
            self._timer = self.after(AGAIN_S, _Look())
            return
        self._asking = True
        answer.add_done_callback(lambda done: self.mailbox.put_system(_Answered(due.key, done)))

    def _answered(self, message: _Answered) -> None:
        self._asking = False
        error = message.answer.error
        if error is None and message.answer.get().events:
            self._done = message.key
        else:
            self._not_before = self.clock.now() + AGAIN_S
