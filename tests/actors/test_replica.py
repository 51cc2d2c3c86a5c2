"""A copy of the state that is slow to follow is right in the end, however often the log was rewound."""

from __future__ import annotations

import random
import tempfile
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.histories import History

from actors.replica import Paths, fold, follow
from events.drivers import STDLIB
from events.feed import CommitFeed
from events.log import EventLog
from events.reader import LogReader
from events.record import Committed, Draft
from projections.snapshot import load_state

ALL = 1 << 30


class Master:
    """A log whose history can take another course from any decision on."""

    def __init__(self, home: Path) -> None:
        self.paths = Paths(home / "log.db", home / "snapshots", STDLIB)
        self.feed = CommitFeed(self.paths.log)
        self._log = EventLog.open(self.paths.log)
        self._home = home
        self._drafts: list[Draft] = []
        self._at = [History(3)]
        """The history after each decision."""
        self._courses = 0

    def go_on(self, decisions: int) -> None:
        self.feed.publish(self._log.append(self._write(decisions)))

    def change_course(self, back: int, decisions: int, slow: Follower) -> None:
        """Void the last ``back`` decisions. The follower looks once before the feed tells of it."""
        fork = max(0, len(self._drafts) - back)
        del self._drafts[fork:], self._at[fork + 1 :]
        self._courses += 1
        self._at[-1]._random = random.Random(self._courses)  # pyright: ignore[reportPrivateUsage]
        self._write(decisions)
        other = EventLog.open(self._home / f"course-{self._courses}.db")
        other.append(self._drafts)
        with LogReader.open(other.path) as reader:
            entries = reader.entries(fork, ALL, ALL)
        other.close()
        appended = self._log.rewind(fork, "winner", "it lost", entries, at=1.0).appended
        slow.handle(1)
        self.feed.rewound(fork, appended)

    def _write(self, decisions: int) -> list[Draft]:
        for _ in range(decisions):
            self._at.append(deepcopy(self._at[-1]))
            self._drafts.append(self._at[-1].step())
        return self._drafts[len(self._drafts) - decisions :]

    def close(self) -> None:
        self._log.close()


class Follower:
    """As an actor: what it is sent waits until it comes to it."""

    def __init__(self, master: Master) -> None:
        self._box: deque[Sequence[Committed] | None] = deque()
        self.state, self._follower = follow(
            master.paths, master.feed, self._box.append, lambda _: self._box.append(None)
        )

    def handle(self, messages: int) -> None:
        for _ in range(min(messages, len(self._box))):
            committed = self._box.popleft()
            if committed is None:
                self.state = self._follower.load()
            elif self._follower.take():
                fold(self.state, committed)


GO_ON = st.tuples(st.just("go on"), st.integers(1, 12))
CHANGE = st.tuples(st.just("change"), st.integers(0, 30), st.integers(0, 30))
HANDLE = st.tuples(st.just("handle"), st.integers(1, 3))


@settings(max_examples=40)
@given(st.lists(st.one_of(GO_ON, CHANGE, HANDLE), max_size=12))
@example([("change", 60, 60), ("change", 60, 30)])
@example([("change", 60, 60), ("change", 60, 0), ("handle", 1), ("go on", 9)])
@example([("change", 30, 20), ("go on", 12), ("go on", 12), ("change", 44, 30)])
def test_the_state_is_that_of_the_log(steps: list[tuple[str, int] | tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as home:
        master = Master(Path(home))
        master.go_on(70)
        slow = Follower(master)
        for step in steps:
            match step:
                case ("go on", decisions):
                    master.go_on(decisions)
                case (_, back, decisions):
                    master.change_course(back, decisions, slow)
                case (_, messages):
                    slow.handle(messages)
        slow.handle(ALL)
        with master.paths.reader() as reader:
            assert slow.state == load_state(reader)
        master.close()
