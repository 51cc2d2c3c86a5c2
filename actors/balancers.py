"""Sees to it that each instance with EPLB has its controller, on the node that leads and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from actors.actor import Actor
from actors.address import Address
from actors.deferred import Deferred
from actors.replica import Paths, follow
from actors.supervision import AddChild, ChildSpec, StopChild
from events.catalogue import EpochStarted, InstanceDeleted
from events.expert_events import ExpertsPlaced
from events.feed import CommitFeed
from events.record import Committed
from events.values import Policy
from projections.state import ClusterState

AGAIN_S = 1.0
"""Seconds before a controller is started again that did not start."""


class _Look(NamedTuple):
    """Start what is missing."""


class _CameUp(NamedTuple):
    """The supervisor's word on a new controller."""

    instance_id: str
    answer: Deferred[Address]


class _Rewound(NamedTuple):
    """The log went back to a fork."""


class Balancers(Actor):
    """One for each node. Of the log it keeps only who leads and which instances have experts to balance.

    The controllers are children of ``supervisor``, which is started anew with this actor.
    """

    def __init__(
        self,
        node_id: str,
        policy: Policy,
        paths: Paths,
        feed: CommitFeed,
        master: Address,
        supervisor: Address,
    ) -> None:
        super().__init__()
        self._node_id = node_id
        self._policy = policy
        self._paths = paths
        self._feed = feed
        self._master = master
        self._supervisor = supervisor
        self._leader = ""
        self._wanted: dict[str, None] = {}
        self._running: set[str] = set()

    def started(self) -> None:
        """Learn from the log who leads and what is to be balanced, and follow it."""
        state, self._follower = follow(
            self._paths, self._feed, self.mailbox.put_system, lambda _: self.mailbox.put_system(_Rewound())
        )
        self._begin(state)
        self.mailbox.put_system(_Look())

    def stopping(self) -> None:
        """Leave the feed. The controllers stop with their supervisor."""
        self._follower.close()

    def receive(self, message: Any) -> None:
        """Take decisions of the feed and word on controllers; then start and stop what should be."""
        match message:
            case _Look():
                pass
            case _CameUp():
                self._came_up(message)
            case _Rewound():
                self._begin(self._follower.load())
            case _:
                self._learn(message)
        self._act()

    def _begin(self, state: ClusterState) -> None:
        self._leader = state.master
        self._wanted = dict.fromkeys(state.experts)

    def _learn(self, committed: Sequence[Committed]) -> None:
        for decision in committed:
            for recorded in decision.events:
                match recorded.event:
                    case EpochStarted() as event:
                        self._leader = event.node_id
                    case ExpertsPlaced() as event:
                        self._wanted[event.instance_id] = None
                    case InstanceDeleted() as event:
                        self._wanted.pop(event.instance_id, None)
                    case _:
                        pass

    def _act(self) -> None:
        wanted = self._wanted if self._leader == self._node_id else {}
        for instance_id in sorted(self._running - wanted.keys()):
            self._running.discard(instance_id)
            self._supervisor.ask_future(StopChild(_name(instance_id)))
        for instance_id in wanted:
            if instance_id not in self._running:
                self._start(instance_id)

    def _start(self, instance_id: str) -> None:
        from actors.eplb.controller import Controller

        self._running.add(instance_id)
        start = partial(Controller, instance_id, self._policy, self._paths, self._feed, self._master)
        answer = self._supervisor.ask_future(AddChild(ChildSpec(_name(instance_id), start)))
        answer.add_done_callback(lambda done: self.mailbox.put_system(_CameUp(instance_id, done)))

    def _came_up(self, message: _CameUp) -> None:
        if message.answer.error is not None:
            self._running.discard(message.instance_id)
            self.after(AGAIN_S, _Look())


def _name(instance_id: str) -> str:
    return f"eplb-{instance_id}"
