"""How a node joins a long log: by a base and its snapshot, or by taking the whole log; and the rates of both.

Run it: ``python tests/benchmarks/bench_join.py [EVENTS]``. One process plays both nodes, with no network
between them. Wall time counts here, because a node that joins waits for its disk too; rates are of CPU time.
The reference for taking entries is plain ``sqlite3`` that inserts the same rows, made beforehand.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.histories import History

from events.drivers import STDLIB
from events.ends import EMPTY
from events.log import EventLog
from events.reader import LogReader
from events.replication import Arrived
from events.schema import create_or_check
from events.to_rows import INSERT_DECISION, INSERT_EVENT
from projections.snapshot import load_state, pack, save, save_base

BATCH, BATCH_BYTES = 500, 4 * 1024**2
SNAPSHOT_AGE, TAIL = 20_000, 1_000
"""Events that the master's own snapshot is old, and decisions that come while the new node opens its log."""

Result = TypeVar("Result")


class Stopwatch:
    """Sums up the wall and CPU time of calls."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def time(self, work: Callable[[], Result]) -> Result:
        """One call."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
        return result


def grow(path: Path, n_events: int) -> None:
    """A log of ``n_events``."""
    log, drafts = EventLog.open(path), iter(History(1))
    while log.head < n_events:
        log.append(list(islice(drafts, BATCH)))
    log.close()


def join(master: LogReader, home: Path) -> EventLog:
    """Time a join by a base up to the state at the head."""
    save(master, home / "snapshots", master.head() - SNAPSHOT_AGE)
    watch = Stopwatch()
    base = master.base_at(master.last_decision() - TAIL)
    packed = watch.time(lambda: pack(master, home / "snapshots", base.seq))
    print(f"the master packs {len(packed) / 1024:,.0f} KiB in {watch.wall * 1000:,.0f} ms")

    def become_ready() -> EventLog:
        save_base(packed, base, home / "joined")
        log = EventLog.open(home / "joined.db")
        log.begin_after(base)
        log.append_entries(master.entries(base.decision_id, TAIL, 2**40))
        with LogReader.open(log.path) as reader:
            assert load_state(reader, home / "joined") == load_state(master, home / "snapshots")
        return log

    log = watch.time(become_ready)
    print(
        f"the new node is ready after {watch.wall * 1000:,.0f} ms in all; "
        f"the log has {master.head():,} events"
    )
    return log


def fill(log: EventLog, master: LogReader) -> None:
    """Time the rest of the join."""
    reading, writing = Stopwatch(), Stopwatch()
    base = master.base_at(master.last_decision() - TAIL)
    count = base.decision_id
    while base is not None:
        upto = base.decision_id
        entries = reading.time(lambda upto=upto: master.entries_upto(upto, BATCH, BATCH_BYTES))
        base = writing.time(lambda entries=entries: log.backfill(entries))
    print(
        f"entries_upto {count / reading.cpu:,.0f}/s  backfill {count / writing.cpu:,.0f}/s; "
        f"the past is there after {reading.wall + writing.wall:.1f} s"
    )


def take_all(master: LogReader, home: Path) -> None:
    """Time a follower that takes the whole log, against plain inserts."""
    reading, writing, plain = Stopwatch(), Stopwatch(), Stopwatch()
    log = EventLog.open(home / "follower.db")
    bare = STDLIB.open(home / "bare.db", write=True)
    bare.execute("PRAGMA journal_mode = WAL").fetchall()
    create_or_check(bare, home / "bare.db")
    arrived = Arrived(EMPTY, 0)
    while entries := reading.time(lambda: master.entries(log.last_decision, BATCH, BATCH_BYTES)):
        writing.time(lambda entries=entries: log.append_entries(entries))
        arrived = Arrived(arrived.tail, 0)
        for entry in entries:
            arrived.add(entry)

        def insert(arrived: Arrived = arrived) -> None:
            bare.execute("BEGIN")
            bare.executemany(INSERT_DECISION, arrived.decisions)
            bare.executemany(INSERT_EVENT, arrived.events)
            bare.execute("COMMIT")

        plain.time(insert)
    count = log.last_decision
    print(
        f"entries {count / reading.cpu:,.0f}/s  append_entries {count / writing.cpu:,.0f}/s, "
        f"of plain inserts: {plain.cpu / writing.cpu:.2f}; the whole log: {writing.wall + reading.wall:.1f} s"
    )
    log.close()
    bare.close()


def main(n_events: int) -> None:
    """Grow a log, then let nodes join it in both ways."""
    home = Path(tempfile.mkdtemp())
    try:
        grow(home / "log.db", n_events)
        with LogReader.open(home / "log.db") as master:
            log = join(master, home)
            fill(log, master)
            log.close()
            take_all(master, home)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
