"""The EPLB controller with a real journal and master: it asks for what is due, whatever crashes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pykka import ActorRef, ActorRegistry
from support.cluster import NODE, POLICY
from support.expert_commands import EVEN
from support.experts import Mixture

from actors.actor import spawn
from actors.address import Address
from actors.balancers import Balancers
from actors.eplb.controller import Controller, errand
from actors.journal import Journal
from actors.master import Master
from actors.ordering.interface import Member
from actors.replica import Paths
from actors.restarts import RestartPolicy
from actors.supervision import ChildSpec, Supervisor
from actors.system import ActorIncident, ActorSystem
from events import expert_events as xe
from events.base import Command, Event
from events.drivers import STDLIB
from events.experts import EplbSettings
from events.feed import CommitFeed
from events.ids import fresh
from projections.snapshot import load_state
from projections.state import ClusterState

QUICK = RestartPolicy(max_restarts=50, backoff_base_s=0.01, backoff_cap_s=0.02)
HASTY = EplbSettings(redundant_experts=2, stage_timeout_s=0.3, apply_timeout_s=0.3)
PATIENT = EplbSettings(redundant_experts=2)


@dataclass
class Core:
    """The actors of a node that decide and balance."""

    paths: Paths
    master: Address
    controllers: Address
    balancers: Address

    def state(self) -> ClusterState:
        with self.paths.reader() as reader:
            return load_state(reader)

    def events(self) -> list[Event]:
        with self.paths.reader() as reader:
            return [recorded.event for recorded in reader.events()]

    def commands(self) -> list[str]:
        with self.paths.reader() as reader:
            return [type(decision.command).__name__ for decision in reader.decisions()]


@contextmanager
def running(
    directory: Path, incidents: list[ActorIncident] | None = None, balancers_of: str = NODE
) -> Iterator[Core]:
    """A start of the node whose log is in ``directory``, which leads; its balancers take it for another."""
    paths = Paths(directory / "log.db", directory / "snapshots", STDLIB)
    feed, incarnation, seen = CommitFeed(paths.log), fresh("run"), incidents if incidents is not None else []
    journal = ChildSpec("journal", lambda: Journal(Member(NODE, incarnation), paths, feed))
    master = ChildSpec(
        "master",
        lambda: Master(NODE, incarnation, journal.address, Address("router"), paths, feed, POLICY),
    )
    controllers = ChildSpec("controllers", lambda: Supervisor(policy=QUICK))
    balancers = ChildSpec(
        "balancers", lambda: Balancers(balancers_of, POLICY, paths, feed, master.address, controllers.address)
    )
    supervisor = Supervisor([journal, master, controllers, balancers], strategy="rest_for_one", policy=QUICK)
    root = spawn(supervisor, "root", ActorSystem(observer=seen.append))
    try:
        yield Core(paths, master.address, controllers.address, balancers.address)
    finally:
        supervisor.stop()
        assert root.join(20) is not None


class Live(Mixture):
    """The mixture of a core: commands go to its master, the state is that of its log."""

    def __init__(self, core: Core, eplb: EplbSettings) -> None:
        self._core = core
        self._eplb = eplb
        super().__init__()
        self.all_ready()

    def place_mixture(self, ranks: int = 2, eplb: EplbSettings | None = None) -> str:
        return super().place_mixture(ranks, eplb or self._eplb)

    def do(self, command: Command) -> list[Event]:
        self._commands += 1
        answer = self._core.master.ask(command, 20)
        self.look()
        return [recorded.event for recorded in getattr(answer, "events", [])]

    def look(self) -> ClusterState:
        self.state = self._core.state()
        return self.state


Eventually = Callable[[Callable[[], object]], None]


def kinds(events: Sequence[Event], *wanted: type[Event]) -> list[str]:
    return [type(event).__name__ for event in events if isinstance(event, wanted)]


def moving(live: Live) -> bool:
    live.look()
    return live.experts.migration is not None


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    with running(tmp_path) as core:
        yield core


def test_a_window_that_closes_is_weighed_once(core: Core, eventually: Eventually) -> None:
    live = Live(core, PATIENT)
    live.window(EVEN)
    eventually(lambda: "RebalanceDecided" in kinds(core.events(), xe.RebalanceDecided))
    live.window(EVEN)
    eventually(lambda: len(kinds(core.events(), xe.RebalanceDecided)) == 2)
    assert core.commands().count("Rebalance") == 2


def test_a_skewed_window_leads_to_a_migration_and_the_next_one_is_weighed_after_it(
    core: Core, eventually: Eventually
) -> None:
    live = Live(core, PATIENT)
    live.window()
    eventually(lambda: moving(live))
    live.migrated()
    live.window()
    eventually(lambda: len(kinds(core.events(), xe.RebalanceDecided)) == 2)
    assert live.look().experts[live.instance_id].epoch == 2


def test_a_layer_that_is_not_staged_in_time_is_given_up(core: Core, eventually: Eventually) -> None:
    live = Live(core, HASTY)
    live.window()
    eventually(lambda: xe.MigrationAborted in map(type, core.events()))
    (aborted,) = [event for event in core.events() if isinstance(event, xe.MigrationAborted)]
    assert (aborted.stage, aborted.cause.code) == ("staging", "deadline_missed")
    assert "0.3 s" in aborted.cause.message
    assert live.look().instances[live.instance_id].status == "ready"
    assert core.commands().count("ExpireMigration") == 1


def test_a_layer_that_is_not_applied_in_time_sets_the_ranks_back(core: Core, eventually: Eventually) -> None:
    live = Live(core, EplbSettings(redundant_experts=2, stage_timeout_s=60.0, apply_timeout_s=0.3))
    live.window()
    eventually(lambda: moving(live))
    committed = live.at_hand
    live.staged()
    eventually(lambda: live.look().instances[live.instance_id].cause is not None)
    assert live.experts.migration is None
    assert live.experts.maps[committed.layer] == committed.map


def test_a_controller_that_crashes_goes_on_where_the_log_stands(
    tmp_path: Path, eventually: Eventually
) -> None:
    incidents: list[ActorIncident] = []
    with running(tmp_path, incidents) as core:
        live = Live(core, EplbSettings(redundant_experts=2, stage_timeout_s=1.0))
        live.window()
        eventually(lambda: moving(live))
        (controller,) = controllers()
        controller.tell("what no controller takes")
        eventually(lambda: [each for each in incidents if each.action == "restarted"])
        eventually(lambda: xe.MigrationAborted in map(type, core.events()))


def controllers() -> list[ActorRef[Controller]]:
    """Those that live."""
    return ActorRegistry.get_by_class(Controller)


def test_a_start_of_the_node_goes_on_where_the_log_stands(tmp_path: Path, eventually: Eventually) -> None:
    """The master dies with a migration open: the next one's controller sees its deadline pass."""
    with running(tmp_path) as core:
        live = Live(core, EplbSettings(redundant_experts=2, stage_timeout_s=2.0))
        live.window()
        eventually(lambda: moving(live))
        migration_id = live.migration.migration_id
    with running(tmp_path) as core:
        assert core.state().experts[live.instance_id].migration is not None
        eventually(lambda: xe.MigrationAborted in map(type, core.events()))
        (aborted,) = [event for event in core.events() if isinstance(event, xe.MigrationAborted)]
        assert aborted.migration_id == migration_id


def test_a_window_that_closed_before_a_crash_is_weighed_after_it(
    tmp_path: Path, eventually: Eventually
) -> None:
    with running(tmp_path, balancers_of="node-b") as core:
        Live(core, PATIENT).window(EVEN)
        assert controllers() == [], "they are where the leader is"
    with running(tmp_path) as core:
        eventually(lambda: kinds(core.events(), xe.RebalanceDecided))


def test_an_instance_that_is_deleted_has_no_controller(core: Core, eventually: Eventually) -> None:
    live = Live(core, PATIENT)
    eventually(lambda: len(controllers()) == 1)
    live.delete(live.instance_id)
    eventually(lambda: not controllers())


class TestErrands:
    """On paper: what is due when."""

    def test_nothing_without_a_window(self) -> None:
        mixture = Mixture()
        assert errand(mixture.state, mixture.instance_id, POLICY, 0.0) is None
        mixture.all_ready()
        assert errand(mixture.state, mixture.instance_id, POLICY, 0.0) is None
        assert errand(mixture.state, "instance-of-old", POLICY, 0.0) is None

    def test_a_window_is_due_at_once_a_deadline_at_its_time(self) -> None:
        mixture = Mixture()
        mixture.all_ready()
        mixture.window()
        weigh = errand(mixture.state, mixture.instance_id, POLICY, 0.0)
        assert weigh is not None
        assert weigh.at <= mixture.now
        mixture.rebalance()
        planned = mixture.now
        expire = errand(mixture.state, mixture.instance_id, POLICY, 0.0)
        assert expire is not None
        assert expire.at == planned + 5.0
        mixture.now += 2
        mixture.staged()
        expire = errand(mixture.state, mixture.instance_id, POLICY, 0.0)
        assert expire is not None
        assert expire.at == planned + 2 + 3.0
        mixture.now = expire.at
        assert mixture.do(expire.command)
        assert errand(mixture.state, mixture.instance_id, POLICY, 0.0) is None

    def test_a_new_controller_gives_reports_that_nobody_took_the_time_to_come(self) -> None:
        mixture = Mixture()
        mixture.all_ready()
        mixture.window()
        mixture.rebalance()
        begun = mixture.now + 1000.0
        expire = errand(mixture.state, mixture.instance_id, POLICY, begun)
        assert expire is not None
        assert expire.at == begun + 5.0
