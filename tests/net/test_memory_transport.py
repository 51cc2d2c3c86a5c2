from __future__ import annotations

import pytest
from support.transports import Recorder, peer
from transport_conformance import TransportConformance, World

from actors.clock import ManualClock
from actors.net.memory import MemoryHub, MemoryTransport
from actors.net.transport import Transport


class MemoryWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.hub = MemoryHub()

    def make(self, node_id: str, queue_messages: int) -> Transport:
        self.hub.limits = (queue_messages, 1 << 30)
        return MemoryTransport(self.hub)

    def break_link(self, one: str, other: str) -> None:
        self.hub.break_link(one, other)

    def stall(self, node_id: str) -> None:
        self.hub.stall(node_id)

    def release(self, node_id: str) -> None:
        self.hub.release(node_id)


class TestMemory(TransportConformance):
    @pytest.fixture
    def world(self) -> World:
        return MemoryWorld()


def two_nodes(hub: MemoryHub) -> tuple[MemoryTransport, MemoryTransport, Recorder, Recorder]:
    a, b, seen_a, seen_b = MemoryTransport(hub), MemoryTransport(hub), Recorder(), Recorder()
    a.start(peer("a"), seen_a)
    b.start(peer("b"), seen_b)
    return a, b, seen_a, seen_b


def test_everything_happens_in_the_clocks_time() -> None:
    clock = ManualClock()
    a, _, seen_a, seen_b = two_nodes(MemoryHub(clock, delay_s=0.010))
    assert seen_a.log == []
    clock.advance(0)
    assert seen_a.of("up") == [("up", "b")]
    a.send("b", "log", b"1")
    clock.advance(0.009)
    assert ("a", "log") not in seen_b.heard
    clock.advance(0.002)
    assert seen_b.heard["a", "log"] == [b"1"]


def test_a_cut_is_silent_and_noticed_later_and_heals() -> None:
    clock = ManualClock()
    hub = MemoryHub(clock)
    a, _, seen_a, seen_b = two_nodes(hub)
    clock.advance(0)
    hub.cut("a", "b")
    assert a.send("b", "log", b"into the void")
    clock.advance(1.9)
    assert seen_a.of("down") == []
    clock.advance(0.2)
    assert seen_a.of("down") == [("down", "b", "nothing was heard from it for 2.0 s")]
    assert seen_b.of("down") == [("down", "a", "nothing was heard from it for 2.0 s")]
    clock.advance(10)
    assert a.peers() == []
    hub.heal("a", "b")
    clock.advance(0)
    assert [p.node_id for p in a.peers()] == ["b"]
    clock.advance(1)
    assert seen_b.heard == {}


def test_a_short_cut_only_delays() -> None:
    clock = ManualClock()
    hub = MemoryHub(clock)
    a, _, seen_a, seen_b = two_nodes(hub)
    clock.advance(0)
    hub.cut("a", "b")
    a.send("b", "log", b"1")
    clock.advance(1)
    hub.heal("a", "b")
    clock.advance(5)
    assert seen_b.heard["a", "log"] == [b"1"]
    assert seen_a.of("down") == []


def test_a_shorter_delay_lets_nothing_overtake() -> None:
    clock = ManualClock()
    hub = MemoryHub(clock, delay_s=1.0)
    a, _, _, seen_b = two_nodes(hub)
    clock.advance(0)
    a.send("b", "log", b"1")
    clock.advance(0)
    hub.delay_s = 0.0
    a.send("b", "log", b"2")
    clock.advance(2)
    assert seen_b.heard["a", "log"] == [b"1", b"2"]


def test_two_runs_are_the_same() -> None:
    def run() -> list[tuple[object, ...]]:
        clock = ManualClock()
        hub = MemoryHub(clock, delay_s=0.001)
        a, b, seen_a, seen_b = two_nodes(hub)
        for step in range(50):
            a.broadcast("log", b"%d" % step)
            b.broadcast("log", b"%d" % step)
            if step % 20 == 10:
                hub.break_link("a", "b")
            clock.advance(0.02)
        return seen_a.log + seen_b.log

    assert run() == run()
