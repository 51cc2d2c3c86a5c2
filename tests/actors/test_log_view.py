"""The run map that the ordering core sees is the log's, whatever has happened to the log."""

from __future__ import annotations

from pathlib import Path

from support.histories import History

from actors.log_view import OrderedLog
from events.commands import StartEpoch
from events.drivers import STDLIB
from events.log import EventLog
from events.reader import LogReader

EPOCHS = 20.0


def agree(view: OrderedLog, reader: LogReader) -> int:
    """How many runs there are."""
    assert [(*run.epoch, run.first, run.last) for run in view.runs()] == reader.runs()
    return len(view.runs())


def test_it_follows_appends_and_rewinds(tmp_path: Path) -> None:
    drafts = History(5, epochs=EPOCHS).take(200)
    log = EventLog.open(tmp_path / "log.db")
    view, reader = OrderedLog(log, STDLIB), LogReader.open(log.path)
    assert agree(view, reader) == 0
    for draft in drafts:
        log.append([draft])
        agree(view, reader)
    assert agree(view, reader) > 10
    starts = [n for n, draft in enumerate(drafts, 1) if isinstance(draft.command, StartEpoch)]
    for fork in (199, starts[-1], starts[-1] - 1, starts[-3] + 1):
        again = reader.entries(fork, 1, 10**6)
        log.rewind(fork, "winner", "reason", [], at=1.0)
        agree(view, reader)
        log.append_entries(again)
        agree(view, reader)
    view.close()
    reader.close()
    log.close()


def test_it_begins_with_the_runs_of_a_base(tmp_path: Path) -> None:
    other = EventLog.open(tmp_path / "other.db")
    other.append(History(5, epochs=EPOCHS).take(100))
    log = EventLog.open(tmp_path / "log.db")
    view, reader = OrderedLog(log, STDLIB), LogReader.open(log.path)
    assert agree(view, reader) == 0
    with LogReader.open(other.path) as theirs:
        log.begin_after(theirs.base_at(60))
        before = agree(view, reader)
        assert (before, view.begins(), view.last()[1]) == (len(theirs.base_at(60).runs), 60, 60)
        log.append_entries(theirs.entries(60, 40, 10**6))
        assert agree(view, reader) > before
        while view.begins():
            log.backfill(theirs.entries_upto(view.begins(), 7, 10**6))
            agree(view, reader)
    for each in (view, reader, log, other):
        each.close()
