"""The log against bare SQLite, against the ``eventsourcing`` library, and its replay against bare decoding.

Run it: ``python tests/benchmarks/bench_append.py [--home DIR] [--seconds S]``. Slices of all cases of one
comparison are interleaved, in random order, so that whatever else the machine does meets them alike; each
number is the median over the slices. Rates are decisions (or events) per second of CPU time and of wall time;
a ratio is the log's rate over the reference's. One decision here has one event.

All write the same facts: a decision (command, facts) and its event. The log encodes them, checks that they
can be read back, looks for an earlier answer to the command, numbers and hashes both rows. The references are
given all that ready-made: ``sqlite3`` inserts the finished rows into equal tables, the recorder of
``eventsourcing`` two stored events with the finished bodies.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from events.catalogue import DownloadProgressed, NodeResourcesChanged, TaskCreated, TaskFinished
from events.codec import EVENTS, encode
from events.commands import Facts, Finished, ReportTask
from events.drivers import STDLIB, ApswDriver, Driver
from events.ends import EMPTY
from events.errors import DriverMissing
from events.log import AUTOCHECKPOINT_PAGES, EventLog
from events.reader import LogReader
from events.record import Draft
from events.schema import create_or_check
from events.to_rows import INSERT_DECISION, INSERT_EVENT, Batch, EncodedDraft
from events.values import Sampling, Timings, Usage

NODE, RUNNER, INSTANCE = "node-0123456789abcdef", "run-0123456789abcdef", "inst-0123456789abcdef"
MODEL = "SmolLM2-135M-Instruct"
USAGE = Usage(prompt_tokens=37, completion_tokens=121)
TIMINGS = Timings(queued_s=0.0012, prefill_s=0.21, decode_s=9.331)

Slice = Callable[[], object]


def event(n: int) -> TaskCreated | TaskFinished | NodeResourcesChanged | DownloadProgressed:
    """A mix of the events that a busy node records most."""
    task = f"task-{n:016x}"
    return (
        TaskCreated(
            task_id=task,
            request_id=f"req-{n:016x}",
            index=0,
            instance_id=INSTANCE,
            runner_id=RUNNER,
            model_id=MODEL,
            kind="chat",
            sampling=Sampling(max_tokens=256, temperature=0.7, top_p=0.9, seed=n, stop=["</s>"]),
            api_node=NODE,
        ),
        TaskFinished(task_id=task, finish_reason="stop", usage=USAGE, timings=TIMINGS),
        NodeResourcesChanged(node_id=NODE, memory_available=2**36 - n, disk_free=10**11),
        DownloadProgressed(model_id=MODEL, node_id=NODE, done_bytes=n * 1000, total_bytes=10**9),
    )[n % 4]


def draft(n: int, full: bool) -> Draft:
    """A decision with one event, of the durability that is measured."""
    return Draft(
        command=ReportTask(
            command_id=f"cmd-{n:016x}",
            origin=NODE,
            task_id=f"task-{n:016x}",
            outcome=Finished(finish_reason="stop", usage=USAGE, timings=TIMINGS),
        ),
        facts=Facts(now=1.7e9 + n / 8, seed=f"{n:032x}", epoch=1, node_id=NODE),
        decider="cluster",
        decider_version=1,
        events=[event(4 * n if full else 4 * n + 2)],
    )


class Log:
    """The log itself."""

    def __init__(self, home: Path, driver: Driver, full: bool) -> None:
        self.name = f"log on {driver.name}"
        self._log = EventLog.open(home / "log.db", driver=driver)
        self._full = full
        self._n = 0

    def prepare(self, batch: int) -> Slice:
        """Make a batch ready to be appended."""
        drafts = [draft(self._n + i, self._full) for i in range(batch)]
        self._n += batch
        return lambda: self._log.append(drafts)


class Bare:
    """The same rows, made beforehand, into equal tables with plain sqlite3."""

    name = "sqlite3"

    def __init__(self, home: Path, driver: Driver, full: bool) -> None:
        self._connection = driver.open(home / "bare.db", write=True)
        for pragma in ("journal_mode = WAL", f"wal_autocheckpoint = {AUTOCHECKPOINT_PAGES}"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        create_or_check(self._connection, home / "bare.db")
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        self._full = full
        self._n, self._tail = 0, EMPTY

    def prepare(self, batch: int) -> Slice:
        """Make the rows of a batch."""
        rows = Batch(self._tail)
        for i in range(batch):
            rows.add(EncodedDraft(draft(self._n + i, self._full)))
        self._n, self._tail = self._n + batch, rows.tail
        return lambda: self._insert(rows)

    def _insert(self, rows: Batch) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(INSERT_DECISION, rows.decisions)
        self._connection.executemany(INSERT_EVENT, rows.events)
        self._connection.execute("COMMIT")


class Eventsourcing:
    """The recorder of the ``eventsourcing`` library, given two ready-made events for each decision."""

    name = "eventsourcing"

    def __init__(self, home: Path, driver: Driver, full: bool) -> None:
        store = SQLiteDatastore(str(home / "es.db"))
        self._recorder = SQLiteApplicationRecorder(store)
        self._recorder.create_table()
        with store.get_connection(commit=False) as connection:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            cursor.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_PAGES}")
        self._full = full
        self._n = 0

    def prepare(self, batch: int) -> Slice:
        """Make a batch of stored events."""
        stored = []
        for n in range(self._n, self._n + batch):
            one = draft(n, self._full)
            for each, name in ((one, "Decision"), (one.events[0], type(one.events[0]).__name__)):
                body = encode((one.command, one.facts)) if each is one else encode(each)
                stored.append(StoredEvent(uuid.uuid4(), 1, name, body.encode()))
        self._n += batch
        return lambda: self._recorder.insert_events(stored)


def timed(job: Slice) -> tuple[float, float]:
    """CPU and wall seconds of a job."""
    cpu, wall = time.process_time(), time.perf_counter()
    job()
    return time.process_time() - cpu, time.perf_counter() - wall


def interleaved(
    cases: dict[str, Callable[[], tuple[int, Slice]]], seconds: float
) -> dict[str, tuple[float, float]]:
    """Median rates (CPU, wall) of cases that each give (count, job), taking turns for so long."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(next(iter(found.values()))) < 5:
        for name in random.sample(list(cases), len(cases)):
            count, job = cases[name]()
            cpu, wall = timed(job)
            found[name].append((count / max(cpu, 1e-9), count / wall))
    return {
        name: (statistics.median(cpu for cpu, _ in rates), statistics.median(wall for _, wall in rates))
        for name, rates in found.items()
    }


def report(title: str, rates: dict[str, tuple[float, float]], ours: str) -> None:
    """Print the rates and the ratios of ``ours`` to each of the others."""
    print(title)
    for name, (cpu, wall) in sorted(rates.items()):
        ratio = (
            ""
            if name == ours
            else f"   {ours}/{name}: {rates[ours][0] / cpu:.2f} CPU, {rates[ours][1] / wall:.2f} wall"
        )
        print(f"    {name:16} {cpu:>11,.0f}/s CPU {wall:>11,.0f}/s wall{ratio}")


def several(store: Log | Bare | Eventsourcing, batch: int) -> tuple[int, Slice]:
    """A slice of at least 20 decisions in transactions of ``batch``."""
    jobs = [store.prepare(batch) for _ in range(max(1, 20 // batch))]
    return batch * len(jobs), lambda: [job() for job in jobs]


def bench_append(root: Path, drivers: list[Driver], seconds: float) -> None:
    """Append: every batch size in both durabilities."""
    for full in (False, True):
        for batch in (1, 10, 100, 1000):
            home = Path(tempfile.mkdtemp(dir=root))
            stores = [
                *(Log(_sub(home, driver.name), driver, full) for driver in drivers),
                Bare(_sub(home, "bare"), STDLIB, full),
                Eventsourcing(_sub(home, "es"), STDLIB, full),
            ]
            cases = {store.name: (lambda store=store, batch=batch: several(store, batch)) for store in stores}
            title = f"append, {'FULL' if full else 'NORMAL'}, batch {batch} (decisions a second)"
            report(title, interleaved(cases, seconds), "log on sqlite3")
            shutil.rmtree(home)


def _sub(home: Path, name: str) -> Path:
    path = home / name
    path.mkdir()
    return path


def bench_replay(root: Path, seconds: float) -> None:
    """Replay: `LogReader.stream` against reading and decoding the same bodies with nothing around it."""
    path, count = root / "replay.db", 20_000
    log = EventLog.open(path)
    drafts = [draft(n, full=bool(n % 2)) for n in range(count)]
    log.append(drafts)
    log.close()
    reader, connection = LogReader.open(path), sqlite3.connect(path)
    decode = EVENTS.decode_current
    bodies = [body for (body,) in connection.execute("SELECT body FROM events")]

    def bare() -> None:
        for *_, body in connection.execute("SELECT seq, epoch, at, body FROM events ORDER BY seq").fetchall():
            decode(body)

    cases: dict[str, Slice] = {
        "stream": lambda: sum(1 for _ in reader.stream()),
        "read and decode": bare,
        "decode": lambda: [decode(body) for body in bodies],
        "decisions": lambda: sum(1 for _ in reader.decisions()),
    }
    slices = {name: (lambda job=job: (count, job)) for name, job in cases.items()}
    report("replay (events a second)", interleaved(slices, seconds), "stream")


def main() -> None:
    """Run both benchmarks in a directory of their own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, help="where to put the files: the disk to measure")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each comparison")
    options = parser.parse_args()
    drivers: list[Driver] = [STDLIB]
    try:
        drivers.append(ApswDriver())
    except DriverMissing as missing:
        print(missing)
    print(", ".join(f"{driver.name} with SQLite {driver.version}" for driver in drivers))
    with tempfile.TemporaryDirectory(dir=options.home) as home:
        bench_append(Path(home), drivers, options.seconds)
        bench_replay(Path(home), options.seconds)


if __name__ == "__main__":
    main()
