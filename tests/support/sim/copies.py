"""What the checks know of a machine's log: each decision by its hash, and the state that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from actors.ordering.epochs import NO_EPOCH, Epoch
from actors.replica import Paths
from events import catalogue as ev
from events.drivers import Connection
from events.ends import read_base
from events.feed import CommitFeed, Subscription
from events.record import Committed
from projections.evolve import apply
from projections.state import ClusterState

if TYPE_CHECKING:
    from support.sim.checks import Checks

_HASHES = "SELECT decision_id, hash FROM decisions WHERE decision_id > ? ORDER BY decision_id"


class Row(NamedTuple):
    """A decision in a log. Its ``hash`` covers all that went before it."""

    index: int
    hash: str
    epoch: Epoch
    last_seq: int
    observation: bool
    committed: Committed


class Copy:
    """Follows the log of one machine from outside its processes."""

    def __init__(self, checks: Checks, node_id: str) -> None:
        self.node_id = node_id
        self.rows: list[Row] = []
        self.commands: dict[str, Row] = {}
        self.gone: dict[str, Row] = {}
        """By command, what was taken out of the log."""
        self.state = ClusterState()
        self._checks = checks
        self._power_was_cut = False
        self._subscription: Subscription | None = None

    def holds(self, row: Row) -> bool:
        """Whether it has this very decision."""
        return len(self.rows) >= row.index and self.rows[row.index - 1].hash == row.hash

    def closed(self, *, power: bool) -> None:
        """The process has ended; with the power may have gone what was not synced."""
        self._power_was_cut = power
        if self._subscription is not None:
            self._subscription.close()

    def follow(self, paths: Paths, feed: CommitFeed) -> None:
        """The log is open: compare, and follow it from now on."""
        if self._subscription is not None:
            self._subscription.close()
        self._paths = paths
        self._file = paths.driver.open(paths.log, write=False)
        self._compare(self._file)
        self._subscription = feed.subscribe(len(self.rows), self._appended, self._rewound)

    def _compare(self, file: Connection) -> None:
        base = read_base(file)
        common = base.decision_id if base is not None else 0
        for index, found in file.execute(_HASHES, (common,)).fetchall():
            if index > len(self.rows) or self.rows[index - 1].hash != found:
                break
            common = index
        lost = self._take_out(common)
        self._checks.lost(self.node_id, lost, power=self._power_was_cut)

    def _appended(self, committed: Sequence[Committed]) -> None:
        found = self._file.execute(_HASHES, (len(self.rows),)).fetchall()
        hashes = [row[1] for row in found[: len(committed)]]
        if len(hashes) < len(committed):
            self._checks.breaks(f"{self.node_id} tells of decisions that its log does not have")
            return
        for decision, own_hash in zip(committed, hashes, strict=True):
            self._append(decision, own_hash)

    def _append(self, decision: Committed, own_hash: str) -> None:
        before = self.rows[-1] if self.rows else None
        epoch, begins = before.epoch if before is not None else NO_EPOCH, False
        for recorded in decision.events:
            if isinstance(recorded.event, ev.EpochStarted):
                epoch, begins = Epoch(*_epoch(recorded.event)), True
        row = Row(
            index=len(self.rows) + 1,
            hash=own_hash,
            epoch=epoch,
            last_seq=decision.first_seq - 1 + len(decision.events),
            observation=bool(decision.events) and all(e.event.OBSERVATION for e in decision.events),
            committed=decision,
        )
        self._checks.appended(self, row, before, begins=begins)
        self.rows.append(row)
        self.commands[decision.command_id] = row
        is_new = self._checks.is_new(row)
        for recorded in decision.events:
            apply(self.state, recorded.seq, recorded.epoch, recorded.at, recorded.event)
            if is_new:
                self._checks.folded(row, self.state)

    def _rewound(self, fork: int) -> None:
        if fork > len(self.rows):
            self._began()
        else:
            self._checks.rewound(self._take_out(fork))

    def _began(self) -> None:
        """An empty log goes on after a base: its past is what another log had there."""
        base = read_base(self._file)
        assert base is not None
        self.rows = self._checks.past(base.decision_id, base.decision_hash)
        self.commands = {row.committed.command_id: row for row in self.rows}
        self._fold_anew()

    def _take_out(self, fork: int) -> list[Row]:
        gone = self.rows[fork:]
        del self.rows[fork:]
        for row in gone:
            self.gone[row.committed.command_id] = self.commands.pop(row.committed.command_id)
        if gone:
            self._fold_anew()
        return gone

    def _fold_anew(self) -> None:
        self.state = ClusterState()
        for row in self.rows:
            for recorded in row.committed.events:
                apply(self.state, recorded.seq, recorded.epoch, recorded.at, recorded.event)


def _epoch(event: ev.EpochStarted) -> tuple[int, str, str]:
    return event.epoch, event.node_id, event.incarnation
