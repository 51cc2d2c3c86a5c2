"""What goes wrong in a run."""

from __future__ import annotations

from functools import partial
from itertools import permutations

from support.sim.checks import Checks
from support.sim.network import Network
from support.sim.node import Machine
from support.sim.world import World


class Faults:
    """Kills, power cuts, stops, partitions, one-way cuts, resets; until `stop`, after which all is well.

    ``ambush`` is the share of nodes that die as soon as they have a master or are one: at that moment much is
    on its way to the disk.
    """

    def __init__(
        self, world: World, network: Network, machines: list[Machine], checks: Checks, ambush: float
    ) -> None:
        self._world = world
        self._network = network
        self._machines = machines
        self._crashes_only = checks.crashes_only
        self._ambush = 0.0 if checks.crashes_only else ambush
        self._stopped = False
        self._to_reach = 0
        checks.on_role = self._took_role
        self._next()

    def stop(self) -> None:
        """Heal all links and start all nodes."""
        self._stopped = True
        self._world.sloth = 0.0
        self._network.heal_all()
        for machine in self._machines:
            machine.start()

    def _next(self) -> None:
        self._world.after(self._world.random.expovariate(1 / 4.0), self._strike)

    def _strike(self) -> None:
        if self._stopped:
            return
        if self._crashes_only:
            self._crash_when_well()
            return
        self._world.random.choice((self._crash, self._part, self._part, self._cut_some, self._reset))()
        self._next()

    def _crash_when_well(self) -> None:
        """One at a time: only once the last one has been made good."""
        if self._is_well():
            self._crash()
            self._to_reach = 0
            self._next()
        else:
            self._world.after(0.2, self._strike)

    def _is_well(self) -> bool:
        """True once all have what the longest log had when all had found together."""
        nodes = [machine.node for machine in self._machines]
        epochs = {node.works_in if node is not None else None for node in nodes}
        lengths = [len(machine.copy.rows) for machine in self._machines]
        if None in epochs or len(epochs) > 1:
            return False
        self._to_reach = self._to_reach or max(lengths)
        return min(lengths) >= self._to_reach > 0

    def _took_role(self, node_id: str) -> None:
        if not self._stopped and self._world.random.random() < self._ambush:
            machine = next(machine for machine in self._machines if machine.node_id == node_id)
            self._world.turn(partial(self._end, machine))

    def _crash(self) -> None:
        """The master more often than the others: of its end there is more to lose."""
        masters = [machine for machine in self._machines if _leads(machine)]
        self._end(self._world.random.choice(masters * 2 + self._machines))

    def _end(self, machine: Machine) -> None:
        if machine.node is not None:
            draw = self._world.random.random()
            if draw < 0.15:
                machine.leave()
            else:
                machine.end(power=draw > 0.7)
            self._world.after(self._world.between(0.2, 6.0), self._start, machine)

    def _start(self, machine: Machine) -> None:
        if machine.node is not None and machine.node.leaving:
            self._world.after(1.0, self._start, machine)
        else:
            machine.start()

    def _part(self) -> None:
        """Two sides that hear nothing of each other."""
        left = [machine.node_id for machine in self._machines if self._world.random.random() < 0.5]
        right = [machine.node_id for machine in self._machines if machine.node_id not in left]
        self._cut([(a, b) for a in left for b in right] + [(b, a) for a in left for b in right])

    def _cut_some(self) -> None:
        """Some ways between two nodes, each in one direction."""
        ids = [machine.node_id for machine in self._machines]
        self._cut([pair for pair in permutations(ids, 2) if self._world.random.random() < 0.2])

    def _cut(self, ways: list[tuple[str, str]]) -> None:
        self._network.cut_ways(ways)
        self._world.after(self._world.between(0.3, 10.0), self._network.heal_ways, ways)

    def _reset(self) -> None:
        """One link breaks, and both sides notice at once."""
        one, other = self._world.random.sample([machine.node_id for machine in self._machines], 2)
        self._network.break_link(one, other)


def _leads(machine: Machine) -> bool:
    node = machine.node
    return node is not None and node.works_in is not None and node.works_in.node_id == machine.node_id
