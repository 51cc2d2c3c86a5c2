"""Links between nodes as the transport gives them: messages over a session, and word of its begin and end.

A session breaks when a process ends or when nothing comes through for two seconds; what was on its way is
lost. Within a session messages may be lost, doubled and overtaken where the run says so, which is harsher
than TCP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from support.sim.world import World

DEAD_AFTER_S = (2.0, 2.5)
"""Until silence is taken for the end of a link."""


class Endpoint(Protocol):
    """A node as the network sees it."""

    node_id: str
    alive: bool
    incarnation: str

    def peer_up(self, node_id: str) -> None: ...
    def peer_down(self, node_id: str) -> None: ...
    def message(self, node_id: str, message: Any) -> None: ...


@dataclass
class Weather:
    """How bad the links are."""

    loss: float = 0.0
    doubled: float = 0.0
    overtaking: bool = False
    delay: tuple[float, float] = (0.0002, 0.004)


@dataclass(eq=False)
class _Session:
    """One connection of two nodes; ``ends`` are those that hold it to be up."""

    pair: frozenset[str]
    ends: set[str]
    last_arrival: dict[str, float] = field(default_factory=dict[str, float])


class Network:
    """All links. Nodes are added once and may then end and start again."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.weather = weather
        self._world = world
        self._nodes: dict[str, Endpoint] = {}
        self._sessions: dict[frozenset[str], _Session] = {}
        self._cut: dict[tuple[str, str], int] = {}
        self._cuts = 0

    def add(self, node: Endpoint) -> None:
        self._nodes[node.node_id] = node

    def started(self, node_id: str) -> None:
        """A process began: it finds the others."""
        for other in self._nodes:
            self._meet_soon(node_id, other)

    def ended(self, node_id: str, *, silently: bool) -> None:
        """A process ended, and its peers notice at once, or (a power cut) by its silence."""
        for session, other in list(self._sessions_of(node_id)):
            session.ends.discard(node_id)
            delay = self._world.between(*DEAD_AFTER_S) if silently else self._world.between(0.005, 0.08)
            self._world.after(delay, self._close, session, other)

    def cut(self, pairs: list[tuple[str, str]]) -> None:
        """Nothing comes through from the first to the second of each pair."""
        for pair in pairs:
            self._cuts += 1
            self._cut[pair] = self._cuts
            delay = self._world.between(*DEAD_AFTER_S)
            self._world.after(delay, self._silence, pair, self._cuts)

    def heal(self, pairs: list[tuple[str, str]]) -> None:
        for sender, receiver in pairs:
            self._cut.pop((sender, receiver), None)
            self._meet_soon(sender, receiver)

    def heal_all(self) -> None:
        self.weather = Weather(delay=self.weather.delay)
        self.heal(list(self._cut))

    def linked(self, node_id: str, other: str) -> bool:
        """True where ``node_id`` holds its link to the other to be up."""
        session = self._sessions.get(frozenset((node_id, other)))
        return session is not None and node_id in session.ends

    def send(self, sender: str, receiver: str, message: Any) -> None:
        """Send over the session; without one the message is lost."""
        session = self._sessions.get(frozenset((sender, receiver)))
        if session is None or sender not in session.ends:
            return
        random, weather = self._world.random, self.weather
        for _ in range(2 if random.random() < weather.doubled else 1):
            if random.random() < weather.loss:
                continue
            arrival = self._world.now + self._world.between(*weather.delay)
            if weather.overtaking:
                arrival += self._world.between(0.0, 0.3) * (random.random() < 0.1)
            else:
                arrival = max(arrival, session.last_arrival.get(receiver, 0.0))
                session.last_arrival[receiver] = arrival
            self._world.after(arrival - self._world.now, self._arrive, session, sender, receiver, message)

    def _arrive(self, session: _Session, sender: str, receiver: str, message: Any) -> None:
        broken = receiver not in session.ends or (sender, receiver) in self._cut
        last_words = sender not in session.ends and self._world.random.random() < 0.5
        if not broken and not last_words:
            self._nodes[receiver].message(sender, message)

    def _sessions_of(self, node_id: str) -> Iterator[tuple[_Session, str]]:
        for session in self._sessions.values():
            if node_id in session.pair:
                (other,) = session.pair - {node_id}
                yield session, other

    def _silence(self, pair: tuple[str, str], cut: int) -> None:
        """The receiver has heard nothing for too long and closes."""
        session = self._sessions.get(frozenset(pair))
        if self._cut.get(pair) == cut and session is not None:
            sender, receiver = pair
            self._close(session, receiver)
            if (receiver, sender) not in self._cut:
                self._world.after(self._world.between(0.001, 0.01), self._close, session, sender)
            else:
                self._world.after(self._world.between(*DEAD_AFTER_S), self._close, session, sender)

    def _close(self, session: _Session, end: str) -> None:
        if end not in session.ends:
            return
        session.ends.discard(end)
        (other,) = session.pair - {end}
        self._nodes[end].peer_down(other)
        if not session.ends:
            self._meet_soon(end, other)

    def _meet_soon(self, node_id: str, other: str) -> None:
        if node_id != other:
            self._world.after(self._world.between(0.05, 0.5), self._meet, node_id, other)

    def _meet(self, node_id: str, other: str) -> None:
        pair = frozenset((node_id, other))
        session = self._sessions.get(pair)
        if session is not None and session.ends:
            if len(session.ends) == 1:
                self._meet_soon(node_id, other)  # until the other end notices
            return
        alive = self._nodes[node_id].alive and self._nodes[other].alive
        if alive and (node_id, other) not in self._cut and (other, node_id) not in self._cut:
            self._sessions[pair] = _Session(pair, {node_id, other})
            self._nodes[node_id].peer_up(other)
            self._nodes[other].peer_up(node_id)

    def lives(self, node_id: str, incarnation: str) -> bool:
        """True where that very process is running."""
        node = self._nodes[node_id]
        return node.alive and node.incarnation == incarnation
