"""The actors of a node that keep its log, without the rest of it; and the logs that such nodes begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.histories import History, write_log
from support.long_log import begins_after, digest

from actors import archive
from actors.actor import spawn
from actors.address import Address
from actors.archive import Archive
from actors.backfill import Backfiller
from actors.clock import SYSTEM_CLOCK
from actors.journal import Journal
from actors.master import Master
from actors.net.memory import MemoryHub, MemoryTransport
from actors.net.transport import Peer, Transport
from actors.ordering.interface import Member, Timing
from actors.replica import Paths
from actors.reporter import Reporter
from actors.restarts import RestartPolicy
from actors.router import Router
from actors.streams import TokenHub
from actors.supervision import ChildSpec, Supervisor
from actors.system import ActorSystem
from events.commands import CancelTasks
from events.drivers import STDLIB
from events.errors import LogMissing
from events.feed import CommitFeed
from events.ids import fresh
from events.log import EventLog
from events.reader import LogReader
from events.values import Policy
from projections.snapshot import load_state, pack, save_base

TIMING = Timing(settle=0.2, lone=0.3, patience=2.0, beat=0.2, retry=0.3)
QUICK = RestartPolicy(max_restarts=50, backoff_base_s=0.01, backoff_cap_s=0.02)


class MiniNode:
    """The actors of a node that keep its log; on links in memory where no subclass says otherwise."""

    def __init__(self, node_id: str, home: Path, network: MemoryHub | None, *, fills: bool = True) -> None:
        self.node_id = node_id
        self.paths = Paths(home / "log.db", home / "snapshots", STDLIB)
        self._feed = CommitFeed(self.paths.log)
        self._hub = TokenHub(node_id)
        self._network = network
        home.mkdir(exist_ok=True)
        journal = ChildSpec("journal", self._journal, start_timeout=60)
        master = ChildSpec("master", lambda: self._master(journal.address, router.address))
        self._reporter = Reporter(master.address, SYSTEM_CLOCK)
        keeper = ChildSpec("archive", lambda: Archive(self.paths))
        router = ChildSpec("router", lambda: self._router(journal.address, master.address, keeper.address))
        filler = ChildSpec("backfiller", lambda: self._filler(journal.address, router.address))
        children = [journal, master, keeper, router, *([filler] if fills else [])]
        self.master = master.address
        self._supervisor = Supervisor(children, strategy="rest_for_one", policy=QUICK)
        self._root = spawn(self._supervisor, f"root of {node_id}", ActorSystem(observer=lambda _: None))

    def _journal(self) -> Journal:
        self._incarnation = fresh("start")
        return self._journal_of(Member(self.node_id, self._incarnation))

    def _filler(self, journal: Address, router: Address) -> Backfiller:
        return Backfiller(self.paths, journal, router)

    def _journal_of(self, me: Member) -> Journal:
        return Journal(me, self.paths, self._feed, TIMING)

    def _transport(self) -> Transport:
        assert self._network is not None
        return MemoryTransport(self._network)

    def _master(self, journal: Address, router: Address) -> Master:
        return Master(self.node_id, self._incarnation, journal, router, self.paths, self._feed, Policy())

    def _router(self, journal: Address, master: Address, keeper: Address) -> Router:
        me = Peer(node_id=self.node_id, name=self.node_id, version="0", api_url="")
        return Router(me, self._transport(), journal, master, keeper, self._hub, self._reporter)

    def stop(self) -> None:
        self._supervisor.stop()
        assert self._root.join(20) is not None
        self._reporter.close()

    @property
    def log(self) -> Path:
        return self.paths.log

    def decide(self, name: str) -> None:
        """A command that leaves a record and changes nothing."""
        self.master.ask(CancelTasks(command_id=name, task_ids=["none"], reason=""), 20)

    def has_log(self) -> bool:
        """False for a moment while the log is set aside."""
        try:
            self.paths.reader().close()
        except LogMissing:
            return False
        return True

    def last(self) -> int:
        with self.paths.reader() as reader:
            return reader.last_decision()


def given(home: Path, decisions: int) -> None:
    """The log that a node begins with: a prefix of one history."""
    home.mkdir()
    write_log(home / "log.db", History(3).take(decisions))


def given_base(home: Path, decisions: int, at: int) -> None:
    """A log of the same history that begins after decision ``at``."""
    given(home, decisions)
    with LogReader.open(home / "log.db") as reader:
        base, tail = reader.base_at(at), reader.entries(at, decisions, 10**9)
        save_base(pack(reader, None, base.seq), base, home / "snapshots")
    (home / "log.db").unlink()
    log = EventLog.open(home / "log.db")
    log.begin_after(base)
    log.append_entries(tail)
    log.close()


def few_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred decisions are a long log from now on."""
    for name, value in {"LONG": 100, "MARGIN": 20, "PAGE": 50}.items():
        monkeypatch.setattr(archive, name, value)


def begins_near(new: MiniNode, old: MiniNode, decisions: int) -> None:
    """The new log begins after a base near so many decisions, and its state is that of the old, whole one."""
    assert begins_after(new.log) > decisions - 50
    with new.paths.reader() as mine, old.paths.reader() as theirs:
        upto = mine.head()
        assert load_state(mine, new.paths.snapshots, upto) == load_state(theirs, None, upto)


def same(*nodes: MiniNode) -> bool:
    """All logs have their past, and the same rows."""
    heads = {node.last() for node in nodes}
    if len(heads) > 1 or any(begins_after(node.log) for node in nodes):
        return False
    return len({digest(node.log, node.last()) for node in nodes}) == 1
