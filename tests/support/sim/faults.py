"""What goes wrong in a run."""

from __future__ import annotations

from itertools import permutations

from support.sim.network import Network
from support.sim.node import Node
from support.sim.world import World


class Faults:
    """Kills, power cuts, partitions, one-way cuts; until `stop`, after which all is well again."""

    def __init__(self, world: World, network: Network, nodes: list[Node], *, crashes_only: bool) -> None:
        self._world = world
        self._network = network
        self._nodes = nodes
        self._crashes_only = crashes_only
        self._stopped = False
        self._to_reach = 0
        self._next()

    def stop(self) -> None:
        """Heal all links and start all nodes."""
        self._stopped = True
        self._network.heal_all()
        for node in self._nodes:
            self._start(node)

    def _next(self) -> None:
        self._world.after(self._world.random.expovariate(1 / 4.0), self._strike)

    def _strike(self) -> None:
        if self._stopped:
            return
        if self._crashes_only:
            self._crash_when_well()
            return
        self._world.random.choice((self._crash, self._part, self._part, self._cut_some))()
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
        epochs = {node.works_in for node in self._nodes}
        lengths = [len(node.disk.rows) for node in self._nodes]
        if None in epochs or len(epochs) > 1:
            return False
        self._to_reach = self._to_reach or max(lengths)
        return min(lengths) >= self._to_reach > 0

    def _crash(self) -> None:
        """The master more often than the others: of its end there is more to lose."""
        masters = [node for node in self._nodes if node.alive and node.master is not None]
        node = self._world.random.choice(masters * 2 + self._nodes)
        if node.alive:
            node.end(power=self._world.random.random() < 0.3)
            self._world.after(self._world.between(0.2, 6.0), self._start, node)

    def _start(self, node: Node) -> None:
        if not node.alive:
            node.start()

    def _part(self) -> None:
        """Two sides that hear nothing of each other."""
        left = {node.node_id for node in self._nodes if self._world.random.random() < 0.5}
        right = [node.node_id for node in self._nodes if node.node_id not in left]
        self._cut(
            [(a, b) for a in sorted(left) for b in right] + [(b, a) for a in sorted(left) for b in right]
        )

    def _cut_some(self) -> None:
        """Some ways between two nodes, each in one direction."""
        ids = [node.node_id for node in self._nodes]
        self._cut([pair for pair in permutations(ids, 2) if self._world.random.random() < 0.2])

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        self._network.cut(pairs)
        self._world.after(self._world.between(0.3, 10.0), self._network.heal, pairs)
