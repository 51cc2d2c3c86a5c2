"""When the router reads its links: soon after a peer has come, and now and then after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from support.transports import Recorder, peer

from actors.actor import Actor, spawn
from actors.clock import ManualClock
from actors.net.memory import MemoryHub, MemoryTransport
from actors.reporter import Reporter
from actors.router import LINKS_EVERY_S, LINKS_SOON_S, SETTLING_S, Router
from actors.streams import TokenHub
from actors.system import ActorSystem
from events import commands as cmd


class Sink(Actor):
    def receive(self, message: Any) -> None:
        pass


class Asked(Router):
    """Answers None, once it has done all before."""

    def receive(self, message: Any) -> Any:
        return super().receive(message) if message is not None else None


class Reports:
    """Stands for the reporter: keeps what it gets."""

    def __init__(self) -> None:
        self.links: list[list[str]] = []

    def send(self, report: cmd.ReportLinks) -> None:
        self.links.append([link.node_id for link in report.links])


def test_a_new_peer_s_link_is_reported_at_once_and_until_it_has_settled(
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    clock, reports, hub = ManualClock(), Reports(), MemoryHub()
    system = ActorSystem(clock=clock)
    sinking = Sink()
    sink = spawn(sinking, "sink", system)
    mine, other = MemoryTransport(hub), MemoryTransport(hub)
    router = Asked(peer("a"), mine, sink, sink, sink, TokenHub("a"), cast("Reporter", reports))
    address = spawn(router, "router", system)

    def readings(seconds: float) -> int:
        """In so many seconds, one after the other: the actor takes each before time goes on."""
        before = len(reports.links)
        for _ in range(round(seconds / LINKS_SOON_S)):
            clock.advance(LINKS_SOON_S)
            address.ask(None, 10)
        return len(reports.links) - before

    try:
        assert readings(LINKS_EVERY_S - LINKS_SOON_S) == 0
        other.start(peer("b"), Recorder())
        eventually(lambda: mine.peers())
        assert readings(SETTLING_S) >= SETTLING_S / LINKS_SOON_S - 1
        assert reports.links[0] == ["b"]
        assert readings(4 * LINKS_EVERY_S) <= 5
    finally:
        other.stop()
        router.stop()
        sinking.stop()
