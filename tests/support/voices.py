"""Nodes without work: journal, master and router of each, on links in memory that can be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.cluster import POLICY
from support.transports import eventually, peer

from actors.actor import spawn
from actors.address import Address
from actors.archive import Archive
from actors.clock import SYSTEM_CLOCK
from actors.deferred import Deferred
from actors.journal import Journal
from actors.master import Master
from actors.net.memory import MemoryHub, MemoryTransport
from actors.net.transport import Transport
from actors.ordering.interface import Member, Timing
from actors.replica import Paths
from actors.reporter import Reporter
from actors.router import Router
from actors.streams import TokenHub
from actors.supervision import ChildSpec, Supervisor
from actors.system import ActorSystem
from events.base import Command
from events.branches import Branch
from events.drivers import STDLIB
from events.feed import CommitFeed
from events.ids import fresh
from events.reader import LogReader
from events.record import Committed

QUICK = Timing(settle=0.3, lone=0.3, patience=3.0, beat=0.3, retry=0.3)
ANSWER_S = 60.0


class Voice:
    """One node. What it knows is what its log says."""

    def __init__(self, name: str, hub: MemoryHub, directory: Path) -> None:
        self.name = name
        self.paths = Paths(directory / "log.db", directory / "snapshots", STDLIB)
        directory.mkdir(parents=True, exist_ok=True)
        self._hub = hub

    def start(self) -> Voice:
        """Begin, or begin anew on the same files."""
        feed, incarnation = CommitFeed(self.paths.log), fresh("run")
        me = Member(self.name, incarnation, seniority=-SYSTEM_CLOCK.now())
        journal = ChildSpec("journal", lambda: Journal(me, self.paths, feed, QUICK))
        archive = ChildSpec("archive", lambda: Archive(self.paths))
        master = ChildSpec(
            "master",
            lambda: Master(self.name, incarnation, journal.address, router.address, self.paths, feed, POLICY),
        )
        reporter = Reporter(master.address, SYSTEM_CLOCK)
        addresses = journal.address, master.address, archive.address
        network = self.network()
        router = ChildSpec(
            "router",
            lambda: Router(peer(self.name), network, *addresses, TokenHub(self.name), reporter),
        )
        self._root = Supervisor([journal, archive, master, router], strategy="rest_for_one")
        self._address = spawn(self._root, f"root of {self.name}", ActorSystem(observer=lambda _: None))
        self._reporter = reporter
        self.master: Address = master.address
        return self

    def network(self) -> Transport:
        """What carries its words, from now on."""
        return MemoryTransport(self._hub)

    def stop(self) -> None:
        """End without a goodbye to the log."""
        self._reporter.close()
        self._root.stop()
        assert self._address.join(30) is not None

    def ask(self, command: Command) -> Committed:
        return self.asking(command).get(timeout=ANSWER_S)

    def asking(self, command: Command) -> Deferred[Any]:
        return self.master.ask_future(command)

    # What its log says

    def entries(self) -> list[bytes]:
        """The whole log, as it travels."""
        with self._reader() as reader:
            return reader.entries(0, 100_000, 1 << 30)

    def leader(self) -> str:
        """Who decided last."""
        with self._reader() as reader:
            epoch, _ = reader.last()
            return epoch[1] if epoch is not None else ""

    def decided(self) -> list[Committed]:
        with self._reader() as reader:
            return list(reader.decisions())

    def branches(self) -> list[Branch]:
        with self._reader() as reader:
            return reader.branches()

    def rejected(self) -> list[str]:
        """The commands in its branches."""
        connection = STDLIB.open(self.paths.log, write=False)
        try:
            rows = connection.execute(
                "SELECT command_id FROM rejected_decisions ORDER BY decision_id"
            ).fetchall()
            return [command_id for (command_id,) in rows]
        finally:
            connection.close()

    def _reader(self) -> LogReader:
        return self.paths.reader()


def agreed(*voices: Voice) -> str:
    """Wait until the logs of all are equal, bytes for bytes; who leads."""

    def equal() -> bool:
        logs = [voice.entries() for voice in voices]
        return bool(logs[0]) and all(log == logs[0] for log in logs)

    eventually(equal, 60)
    return voices[0].leader()
