"""Replay against bare decoding, snapshots against the length of the log, mirror and verify.

Run ``PYTHONPATH=tests python tests/benchmarks/bench_replay.py [EVENTS]``; a million by default, which makes a
log of a gigabyte in the temporary directory. Compared cases alternate within one run; ratios are medians,
rates are per CPU second of this process.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
from support.histories import History

from actors.decider import VERSION, decide
from actors.refusal import Rejected
from events.catalogue import ClusterEvent
from events.drivers import STDLIB
from events.log import EventLog
from events.reader import LogReader
from events.record import Draft
from projections import snapshot
from projections.evolve import apply
from projections.mirror import Mirror
from projections.snapshot import load_state
from projections.state import ClusterState
from projections.verify import verify

ROUNDS = 5
STEP = 1_000
"""Decisions of one commit, events that a snapshot is old, decisions of one transaction of the mirror."""


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def grow(log: EventLog, drafts: Iterator[Draft], n_events: int) -> None:
    """Append decisions until the log has ``n_events``."""
    while log.head < n_events:
        log.append(list(islice(drafts, STEP)))


def bare(path: Path) -> None:
    """What replay can't do without: read the rows, decode the bodies, apply the events."""
    decoder = msgspec.json.Decoder(ClusterEvent)
    state = ClusterState()
    connection = STDLIB.open(path, write=False)
    query = connection.execute("SELECT seq, epoch, at, body FROM events ORDER BY seq")
    for seq, epoch, at, body in query:
        apply(state, seq, epoch, at, decoder.decode(body))
    connection.close()


def decode_only(path: Path) -> None:
    """Read the rows and decode the bodies."""
    decoder = msgspec.json.Decoder(ClusterEvent)
    connection = STDLIB.open(path, write=False)
    for (body,) in connection.execute("SELECT body FROM events ORDER BY seq"):
        decoder.decode(body)
    connection.close()


def compare_replay(path: Path, reader: LogReader) -> None:
    """Print the replay's rate and its ratios to the two bare loops."""
    n_events = reader.head()
    rounds = [
        (cpu(lambda: load_state(reader)), cpu(lambda: bare(path)), cpu(lambda: decode_only(path)))
        for _ in range(ROUNDS)
    ]
    replay, bare_apply, decoding = (statistics.median(times) for times in zip(*rounds, strict=True))
    against_bare = statistics.median(b / r for r, b, _ in rounds)
    against_decode = statistics.median(d / r for r, _, d in rounds)
    print(f"{n_events:>9,} events  replay {n_events / replay:>9,.0f}/s  ", end="")
    print(f"of read+decode+apply ({n_events / bare_apply:,.0f}/s): {against_bare:.2f}  ", end="")
    print(f"of read+decode ({n_events / decoding:,.0f}/s): {against_decode:.2f}")


def compare_open(reader: LogReader, snapshots: Path) -> None:
    """Print the time to the state with a snapshot that is `STEP` events old."""
    size = snapshot.save(reader, snapshots, reader.head() - STEP).stat().st_size
    with_snapshot = statistics.median(cpu(lambda: load_state(reader, snapshots)) for _ in range(ROUNDS))
    print(f"{'':17}with a snapshot ({size / 1024:,.0f} KiB): open in {with_snapshot * 1000:.1f} ms")


def compare_mirror(reader: LogReader, directory: Path, n_decisions: int) -> None:
    """Print the rates of the mirror and of verify over the newest decisions."""
    decisions = list(reader.decisions(limit=n_decisions))
    n_events = sum(len(decision.events) for decision in decisions)
    mirror = Mirror.open(directory / "projections.db", reader)
    spent = 0.0
    for start in range(0, len(decisions), STEP):
        spent += cpu(lambda first=start: mirror.apply(decisions[first : first + STEP]))
    mirror.close()
    print(f"mirror: {n_events / spent:,.0f} events/s, {len(decisions) / spent:,.0f} decisions/s")
    upto = decisions[-1].decision_id

    def check() -> None:
        report = verify(reader, decide, refusal=Rejected, decider_version=VERSION, upto=upto)
        assert report.ok, report.render()

    reading = cpu(lambda: list(reader.decisions(upto=upto)))
    checking = cpu(check)
    print(f"verify: {len(decisions) / checking:,.0f} decisions/s, of bare reading: {reading / checking:.2f}")


def main(n_events: int) -> None:
    """Grow a log to ``n_events`` in three steps and measure at each."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        log = EventLog.open(directory / "log.db")
        drafts = iter(History(1))
        for size in (n_events // 100, n_events // 10, n_events):
            grow(log, drafts, size)
            reader = LogReader.open(directory / "log.db")
            compare_replay(directory / "log.db", reader)
            compare_open(reader, directory / "snapshots")
        compare_mirror(reader, directory, 20_000)
        log.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
