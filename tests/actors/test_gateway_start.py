"""The gateway's start: nothing that is committed while it reads the log is lost or folded too early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from actors import gateway as gateways
from actors.address import Address
from actors.decider import NAME, VERSION, decide
from actors.gateway import Gateway
from actors.replica import Follower, Paths
from actors.settings import Settings
from actors.streams import PromptShelf, TokenHub
from events.commands import Facts, StartEpoch
from events.drivers import STDLIB
from events.feed import CommitFeed
from events.log import EventLog
from events.record import Committed, Draft
from projections.state import ClusterState


def start_epoch(log: EventLog, state: ClusterState, epoch: int) -> list[Committed]:
    command = StartEpoch(command_id=f"epoch-{epoch}", node_id="node-1", incarnation="start-1")
    facts = Facts(now=float(epoch), seed=str(epoch), epoch=epoch, node_id="node-1")
    events = decide(state, command, facts)
    draft = Draft(command=command, facts=facts, decider=NAME, decider_version=VERSION, events=events)
    return log.append([draft])


def test_what_is_committed_while_it_starts_waits_for_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog.open(tmp_path / "log.db")
    start_epoch(log, ClusterState(), 1)
    paths = Paths(tmp_path / "log.db", tmp_path / "snapshots", STDLIB)
    feed = CommitFeed(paths.log)
    follow = gateways.follow

    def slow(
        paths: Paths,
        feed: CommitFeed,
        deliver: Callable[[Sequence[Committed]], None],
        on_rewind: Callable[[int], None],
    ) -> tuple[ClusterState, Follower]:
        """As a busy machine has it: a commit comes between the reading and the caller's having it."""
        state, follower = follow(paths, feed, deliver, on_rewind)
        feed.publish(start_epoch(log, ClusterState(epoch=1), 2))
        time.sleep(0.1)
        return state, follower

    monkeypatch.setattr(gateways, "follow", slow)

    async def epochs_seen() -> int:
        addresses = Address("master"), Address("downloader")
        gateway = Gateway(
            "node-1", "start-1", Settings(), paths, feed, *addresses, PromptShelf(), TokenHub("node-1")
        )
        await gateway.open()
        try:
            return await gateway.wait_until(lambda state: state.epoch if state.epoch == 2 else None, 5)
        finally:
            gateway.close()

    try:
        assert asyncio.run(epochs_seen()) == 2
    finally:
        log.close()
