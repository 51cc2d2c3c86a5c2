"""Groups of ranks in a simulated cluster that is divided and heals: adopted, or nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
from support.cards import SMALL
from support.sim.checks import Checks
from support.sim.network import Network
from support.sim.node import Machine, SimulatedNode
from support.sim.run import CALM, _substituted
from support.sim.runners import Groups, SimulatedRunner
from support.sim.world import World

from events import commands as cmd
from events import status as st
from events.base import Command
from events.values import PlacementSettings, Rank
from projections.state import Instance

SEEDS = range(3)
AHEAD_S = 15.0


class Divided:
    """Five machines, two of them with what a group needs, which are cut off from the others for a while."""

    def __init__(self, world: World, network: Network, checks: Checks, machines: list[Machine]) -> None:
        self.world = world
        self.checks = checks
        self.machines = machines
        self._network = network
        self._commands = 0
        for number, machine in enumerate(machines):
            machine.shelf.has_model = True
            machine.cpus = 2 if number < 2 else 1
            machine.start()
        self.passes(AHEAD_S)
        self.instance_id = self.places(ranks=2, device_id="cpu:1")
        placement = self.seen_by(0).placement
        assert placement is not None
        self.ranks = placement.ranks
        self.before = self.processes()

    def passes(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def asks(self, command: Command, on: int = 0) -> None:
        """A client of a machine asks for something."""
        node = self.machines[on].node
        assert node is not None
        assert node.api is not None
        node.api.loop.create_task(node.api.gateway.ask(command))
        self.passes(AHEAD_S)

    def places(self, on: int = 0, **wishes: object) -> str:
        known = set(self.machines[on].copy.state.instances)
        settings = PlacementSettings(context=512, batch=1, **wishes)  # type: ignore[arg-type]
        self.asks(
            cmd.PlaceInstance(command_id=self.next_id(), model_id=SMALL.model_id, settings=settings), on
        )
        (instance_id,) = set(self.machines[on].copy.state.instances) - known
        assert self.machines[on].copy.state.instances[instance_id].status == "ready"
        return instance_id

    def next_id(self) -> str:
        self._commands += 1
        return f"cmd-{self._commands}"

    def cut(self, *off: int) -> None:
        """These machines hear nothing of the others."""
        sides = [f"n{k}" for k in off], [f"n{k}" for k in range(5) if k not in off]
        self._ways = [*product(*sides), *product(*reversed(sides))]
        self._network.cut_ways(self._ways)
        self.passes(AHEAD_S)

    def heals(self) -> None:
        """And all is well, by all that is checked in the end of a run."""
        self._network.heal_ways(self._ways)
        self.passes(3 * AHEAD_S)
        while any(node.reports_waiting for node in self.nodes()):  # readings
            self.passes(0.1)
        self.checks.finish(self.machines)

    def nodes(self) -> list[SimulatedNode]:
        return [machine.node for machine in self.machines if machine.node is not None]

    def seen_by(self, number: int) -> Instance:
        return self.machines[number].copy.state.instances[self.instance_id]

    def processes(self) -> dict[str, SimulatedRunner]:
        """The living runners of the group's first placement."""
        ids = {rank.runner_id for rank in self.ranks}
        living = [runner for node in self.nodes() for runner in node.process.all(SimulatedRunner)]
        return {runner.runner_id: runner for runner in living if runner.runner_id in ids}

    def adopted(self) -> list[list[str]]:
        return self.checks.adopted(self.machines[0].copy)

    def refusals(self) -> list[str]:
        """The reasons for which the log says that runners were not adopted."""
        decided = [row.committed for row in self.machines[0].copy.rows]
        return [
            each.rejection.message
            for each in decided
            if isinstance(each.command, cmd.ReportAdoptable) and each.rejection is not None
        ]


@contextmanager
def divided(seed: int, root: Path) -> Iterator[Divided]:
    world, groups = World(seed), Groups()
    network, checks = Network(world, CALM), Checks(world, crashes_only=False)
    with _substituted(world, groups, checks):
        machines = [Machine(world, network, groups, checks, f"n{k}", root) for k in range(5)]
        yield Divided(world, network, checks, machines)
        for machine in machines:
            machine.end(power=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_of_the_losing_side_serves_on(seed: int, tmp_path: Path) -> None:
    with divided(seed, tmp_path) as cluster:
        assert {rank.node_id for rank in cluster.ranks} == {"n0", "n1"}
        cluster.cut(0, 1)
        assert cluster.seen_by(0).status == "ready"
        assert cluster.seen_by(2).status == "failed", "nobody else has what it needs"
        cluster.heals()
        assert cluster.adopted() == [[rank.runner_id for rank in cluster.ranks]]
        assert _ranks(cluster.seen_by(2)) == cluster.ranks
        assert cluster.processes() == cluster.before, "the same processes"
        runners = cluster.machines[2].copy.state.runners
        for rank in cluster.ranks:
            living = cluster.before[rank.runner_id]
            assert isinstance(living.status, st.Ready)
            assert living._idle is not None
            assert runners[rank.runner_id].pid == living._idle.pid


@pytest.mark.parametrize("seed", SEEDS)
def test_and_again_after_the_next_division(seed: int, tmp_path: Path) -> None:
    with divided(seed, tmp_path) as cluster:
        for _ in range(2):
            cluster.cut(0, 1)
            cluster.heals()
        assert len(cluster.adopted()) == 2
        assert cluster.processes() == cluster.before


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_that_nobody_wants_any_more_leaves_nothing(seed: int, tmp_path: Path) -> None:
    with divided(seed, tmp_path) as cluster:
        cluster.cut(0, 1)
        cluster.asks(cmd.DeleteInstance(command_id=cluster.next_id(), instance_id=cluster.instance_id), on=2)
        cluster.heals()
        assert cluster.processes() == {}
        (why,) = cluster.refusals()
        assert "not wanted" in why


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_whose_instance_is_ready_elsewhere_leaves_nothing(seed: int, tmp_path: Path) -> None:
    with divided(seed, tmp_path) as cluster:
        cluster.machines[2].cpus = 2
        cluster.machines[2].end(power=False)
        cluster.cut(0, 1)
        cluster.machines[2].start()
        cluster.passes(AHEAD_S)
        assert cluster.seen_by(3).status == "ready"
        cluster.heals()
        assert cluster.processes() == {}
        (why,) = cluster.refusals()
        assert "ready elsewhere" in why


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_on_both_sides_are_no_group_any_more(seed: int, tmp_path: Path) -> None:
    with divided(seed, tmp_path) as cluster:
        cluster.cut(0)
        cluster.heals()
        assert cluster.adopted() == []
        assert not set(cluster.processes().values()) & set(cluster.before.values())
        assert cluster.seen_by(0).status == "ready"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_group_that_has_lost_a_machine_leaves_nothing(seed: int, number: int, tmp_path: Path) -> None:
    with divided(seed, tmp_path) as cluster:
        cluster.cut(0, 1)
        cluster.machines[number].end(power=True)
        cluster.passes(0.5)
        cluster.machines[number].start()
        cluster.heals()
        assert cluster.adopted() == []
        assert cluster.processes() == {}
        assert cluster.seen_by(0).status == "ready"


def _ranks(instance: Instance) -> list[Rank]:
    return instance.placement.ranks if instance.placement is not None else []
