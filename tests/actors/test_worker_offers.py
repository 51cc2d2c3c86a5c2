"""A worker offers a runner that the log has lost: one that is taken lives on, one that is refused ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cluster import NODE, node_started

from actors.actor import Actor, spawn
from actors.address import Address
from actors.decider import NAME, VERSION, decide
from actors.plan import LocalRunner
from actors.refusal import Rejected
from actors.replica import Paths
from actors.reporter import Reporter
from actors.settings import Settings
from actors.streams import PromptShelf, TokenHub
from actors.system import ActorSystem
from actors.worker import Worker
from events.commands import Facts, ReportAdoptable
from events.drivers import STDLIB
from events.feed import CommitFeed
from events.log import EventLog
from events.record import Draft
from events.values import Cause, Placement, Rank
from projections.state import ClusterState

RANK = Rank(
    rank=0,
    runner_id="runner-1",
    node_id=NODE,
    device_id="cpu:0",
    start_layer=0,
    end_layer=2,
    reserved_bytes=0,
)
PLACEMENT = Placement(
    attempt=1, engine="mlx", dtype="float32", strategy="auto", context=512, batch=1, ranks=[RANK]
)


class Master(Actor):
    """Decides at once; what it decides comes to the worker with the log, and that has yet to come."""

    def __init__(self, takes: bool) -> None:
        super().__init__()
        self.offers = 0
        self._takes = takes

    def receive(self, message: object) -> None:
        if isinstance(message, ReportAdoptable):
            self.offers += 1
            if not self._takes:
                raise Rejected(Cause(code="not_adopted", message="It is ready elsewhere."))


@pytest.fixture
def started(tmp_path: Path) -> Paths:
    """A log that knows this start of the node, and no instance."""
    command = node_started(NODE)
    facts = Facts(now=1.0, seed="1", epoch=1, node_id=NODE)
    events = decide(ClusterState(), command, facts)
    log = EventLog.open(tmp_path / "log.db")
    log.append([Draft(command=command, facts=facts, decider=NAME, decider_version=VERSION, events=events)])
    log.close()
    return Paths(tmp_path / "log.db", tmp_path / "snapshots", STDLIB)


def answered(reporter: Reporter) -> bool:
    """All who wait for an answer have been told."""
    with reporter._lock:
        return len(reporter) == 0


@pytest.mark.parametrize("takes", [True, False])
def test_only_one_that_is_refused_is_shut_down(
    started: Paths, system: ActorSystem, eventually: Callable[[Callable[[], object]], None], takes: bool
) -> None:
    """The answer may be here before the worker's copy of the log has the decision: it is no refusal."""
    master = Master(takes)
    reporter = Reporter(spawn(master, "master", system), system.clock)
    nobody = Address("nobody")
    worker = Worker(
        NODE,
        "run-1",
        Settings(home="unused"),
        started,
        CommitFeed(started.log),
        reporter,
        nobody,
        nobody,
        nobody,
        PromptShelf(),
        TokenHub(NODE),
    )
    runner = worker._view.runners["runner-1"] = LocalRunner("instance-1", PLACEMENT, ready=True)
    spawn(worker, "worker", system)
    eventually(lambda: master.offers == 1 and answered(reporter))
    eventually(lambda: worker.mailbox._reader_sleeps)
    assert runner.stopping == (not takes)
