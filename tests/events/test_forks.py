"""Two logs that forked, however: they converge to equal files, and what lost is in the loser's branches."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from log_samples import draft, finish, query, reading, refuse, request

from events.catalogue import EpochStarted
from events.chain import DECISION_COLUMNS, EVENT_COLUMNS
from events.check import check
from events.commands import StartEpoch
from events.log import EventLog
from events.reader import LogReader
from events.record import Draft

ALL = 10**9
PARTS = (("decisions", DECISION_COLUMNS), ("events", EVENT_COLUMNS))

Rows = list[list[tuple]]


class Side:
    """One node's log, and what it should hold."""

    def __init__(self, path: Path, name: str) -> None:
        self.log = EventLog.open(path)
        self.name = name
        self.epoch = 0
        self.rejected: list[Rows] = []

    def work(self, kinds: list[int], n: int) -> None:
        """Lead for a while: a new epoch, and some decisions in it."""
        self.epoch += 1
        command = StartEpoch(command_id=f"{self.name}-{n}", node_id=self.name, incarnation=f"run-{n}")
        event = EpochStarted(epoch=self.epoch, node_id=self.name, incarnation=f"run-{n}")
        drafts = [draft(command, event, epoch=self.epoch - 1)]
        for i, kind in enumerate(kinds):
            one = (finish, request, refuse, reading)[kind](n * 100 + i)
            drafts.append(draft(_of(one, self.name), *one.events, epoch=self.epoch, rejection=one.rejection))
        self.log.append(drafts)

    def rows(self, after: int = 0) -> Rows:
        return [
            query(self.log._connection, f"SELECT {columns}, hash FROM {table} WHERE decision_id > {after}")
            for table, columns in PARTS
        ]

    def branch(self, number: int) -> Rows:
        return [
            query(
                self.log._connection,
                f"SELECT {columns}, hash FROM rejected_{table} WHERE branch = {number} ORDER BY 1",
            )
            for table, columns in PARTS
        ]


def _of(one: Draft, name: str):
    fields = {field: getattr(one.command, field) for field in one.command.__struct_fields__}
    return type(one.command)(**{**fields, "command_id": f"{name}-{one.command.command_id}"})


def fork_of(loser: LogReader, winner: LogReader) -> int:
    """The last decision that two logs share, by their run maps."""
    fork = 0
    for mine, other in zip(loser.runs(), winner.runs(), strict=False):
        if mine[:4] != other[:4]:
            break
        fork = min(mine.last, other.last)
    return fork


def heal(loser: Side, winner: Side) -> None:
    """Let the loser take the winner's history."""
    with LogReader.open(loser.log.path) as mine, LogReader.open(winner.log.path) as other:
        fork = fork_of(mine, other)
        entries = other.entries(fork, ALL, ALL)
        lost = loser.rows(after=fork)
        rewound = loser.log.rewind(fork, winner.name, "it lost", entries, at=1.0)
        assert rewound.appended == list(other.decisions(after=fork))
        assert len(rewound.rejected) == len(lost[0])
        assert mine.runs() == other.runs()
        assert mine.last() == other.last()
    if lost[0]:
        loser.rejected.append(lost)
    loser.epoch = winner.epoch = max(loser.epoch, winner.epoch)


WORK = st.lists(st.integers(0, 3), max_size=6)
ROUNDS = st.lists(st.tuples(WORK | st.none(), WORK | st.none(), st.booleans()), max_size=8)


@given(ROUNDS)
@settings(max_examples=40, deadline=None)
def test_forked_logs_converge_and_keep_what_lost(
    rounds: list[tuple[list[int] | None, list[int] | None, bool]],
):
    with tempfile.TemporaryDirectory() as home:
        a, b = (Side(Path(home) / f"{name}.db", name) for name in "ab")
        for n, (for_a, for_b, a_wins) in enumerate(rounds):
            for side, kinds in ((a, for_a), (b, for_b)):
                if kinds is not None:
                    side.work(kinds, n)
            winner, loser = (a, b) if a_wins else (b, a)
            heal(loser, winner)
            assert a.rows() == b.rows()
        for side in (a, b):
            assert [side.branch(number) for number in range(1, len(side.rejected) + 1)] == side.rejected
            found = check(side.log.path)
            assert found.ok
            assert len(found.branches) == len(side.rejected)
            side.log.close()
