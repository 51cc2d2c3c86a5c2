"""The in-memory network with bad weather: frames come late, twice, out of order or never; links break.

A link ends for each side when that side notices. Where a process is killed its peers notice at once, where a
machine or the way to it is silent after two seconds and more. Losing and overtaking within a link is harsher
than TCP, which carries the mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

from support.sim.process import Process
from support.sim.world import World

from actors.net.memory import Lane, Life, MemoryHub, MemoryTransport

DEAD_AFTER_S = (2.0, 2.5)
"""Until silence is taken for the end of a link."""
SILENT = "nothing was heard from it"


@dataclass
class Weather:
    """How bad the links are."""

    loss: float = 0.0
    doubled: float = 0.0
    overtaking: bool = False
    delay: tuple[float, float] = (0.0002, 0.004)


class Network(MemoryHub):
    """All links of a run."""

    def __init__(self, world: World, weather: Weather) -> None:
        super().__init__(Process(world, skew=0.0))
        self.weather = weather
        self._world = world
        self._ways: dict[tuple[str, str], int] = {}
        self._cuts = 0

    # What a link does to a frame

    def stuck(self, one: str, other: str) -> bool:
        return (one, other) in self._ways

    def arrivals(self, lane: Lane) -> list[float]:
        random, weather = self._world.random, self.weather
        arrivals: list[float] = []
        for _ in range(2 if random.random() < weather.doubled else 1):
            if random.random() < weather.loss:
                continue
            at = self._world.now + self._world.between(*weather.delay)
            if weather.overtaking:
                at += self._world.between(0.0, 0.3) * (random.random() < 0.1)
            else:
                at = lane.free_at = max(at, lane.free_at)
            arrivals.append(at)
        return arrivals

    # Cuts

    def cut_ways(self, ways: list[tuple[str, str]]) -> None:
        """Nothing comes through from the first to the second of each pair; who hears nothing closes."""
        for way in ways:
            self._cuts += 1
            self._ways[way] = self._cuts
            self._world.after(self._world.between(*DEAD_AFTER_S), self._silence, way, self._cuts)

    def heal_ways(self, ways: list[tuple[str, str]]) -> None:
        for way in ways:
            self._ways.pop(way, None)
            life = self.lives.get(frozenset(way))
            if life is not None:
                life.flush()
            self._world.after(self._world.between(0.0, 0.5), self._try, frozenset(way))

    def heal_all(self) -> None:
        self.weather = Weather(delay=self.weather.delay)
        self.heal_ways(list(self._ways))

    def _silence(self, way: tuple[str, str], cut: int) -> None:
        life = self.lives.get(frozenset(way))
        if self._ways.get(way) != cut or life is None:
            return
        sender, receiver = way
        life.close(receiver, SILENT)
        if (receiver, sender) in self._ways:
            self._close_later(DEAD_AFTER_S, life, sender, SILENT)
        else:
            self._close_later((0.001, 0.01), life, sender, "it closed the link")

    def _close_later(self, delay: tuple[float, float], life: Life, node_id: str, why: str) -> None:
        self._world.after(self._world.between(*delay), life.close, node_id, why)

    # Ends

    def leave(self, node: MemoryTransport) -> None:
        late = self.weather.delay[1]
        self._go(node, (late, late), "it left the cluster", orderly=True)

    def vanish(self, node: MemoryTransport, *, silently: bool) -> None:
        """A process ends without a word; of its last ones some are not heard any more."""
        self._go(node, (0.0, 0.08), "the connection broke", silently=silently)

    def _go(
        self,
        node: MemoryTransport,
        delay: tuple[float, float],
        why: str,
        *,
        orderly: bool = False,
        silently: bool = False,
    ) -> None:
        node_id = node.me.node_id
        self._nodes.pop(node_id, None)
        for pair, life in list(self.lives.items()):
            if node_id in pair:
                (other,) = pair - {node_id}
                if orderly:
                    life.flush_now()
                life.close(node_id, why)
                if silently or self.stuck(node_id, other):
                    self._close_later(DEAD_AFTER_S, life, other, SILENT)
                else:
                    self._close_later(delay, life, other, why)

    def _try(self, pair: frozenset[str]) -> None:
        one, other = sorted(pair)
        if (one, other) not in self._ways and (other, one) not in self._ways:
            super()._try(pair)
