"""The worker where its copy of the log and what it hears from elsewhere are not in step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

    def __init__(self) -> None:
        super().__init__()
        self.offers = 0
        self.takes = True

    def receive(self, message: object) -> None:
        if isinstance(message, ReportAdoptable):
            self.offers += 1
            if not self.takes:
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


@dataclass
class Bench:
    """A worker with what it talks to; nothing runs yet."""

    worker: Worker
    master: Master
    reporter: Reporter
    feed: CommitFeed
    hub: TokenHub


@pytest.fixture
def bench(started: Paths, system: ActorSystem) -> Bench:
    master, feed, hub, nobody = Master(), CommitFeed(started.log), TokenHub(NODE), Address("nobody")
    reporter = Reporter(spawn(master, "master", system), system.clock)
    settings = Settings(home="unused")
    at_hand = (nobody, nobody, nobody, PromptShelf(), hub)
    worker = Worker(NODE, "run-1", settings, started, feed, reporter, *at_hand)
    return Bench(worker, master, reporter, feed, hub)


@pytest.mark.parametrize("takes", [True, False])
def test_only_one_that_is_refused_is_shut_down(
    bench: Bench, system: ActorSystem, eventually: Callable[[Callable[[], object]], None], takes: bool
) -> None:
    """The answer may be here before the worker's copy of the log has the decision: it is no refusal."""
    bench.master.takes = takes
    runner = bench.worker._view.runners["runner-1"] = LocalRunner("instance-1", PLACEMENT, ready=True)
    spawn(bench.worker, "worker", system)
    eventually(lambda: bench.master.offers == 1 and answered(bench.reporter))
    eventually(lambda: bench.worker.mailbox._reader_sleeps)
    assert runner.stopping == (not takes)


def test_a_task_that_a_rewind_took_is_not_routed_for_ever(
    bench: Bench, system: ActorSystem, eventually: Callable[[Callable[[], object]], None]
) -> None:
    bench.hub.route("task-1", "node-b")
    bench.worker._view.dispatched["task-1"] = "runner-1"
    spawn(bench.worker, "worker", system)
    bench.feed.rewound(0, [])
    eventually(lambda: not bench.worker._view.dispatched and bench.worker.mailbox._reader_sleeps)
    assert bench.hub._away == {}
