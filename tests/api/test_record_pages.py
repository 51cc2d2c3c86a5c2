"""The pages of a followed log: in order, and anew from the fork where the log was rewound."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.histories import History, write_log

from api.log_access import LogAccess
from api.records import Filter, next_page
from events.errors import LogRewound
from events.log import EventLog
from events.reader import LogReader

ALL = Filter(types=None, subject=None)


def test_a_stream_goes_back_to_the_fork_once(tmp_path: Path) -> None:
    write_log(tmp_path / "log.db", History(3).take(60))
    with LogReader.open(tmp_path / "log.db") as log:
        rewinds, fork, page = next_page(log, ALL, 0)
        assert (rewinds, fork, page.after) == (0, None, log.head())
        sent = page.after
        seq = log.base_at(30).seq
        assert seq < sent
        kept = log.entries(30, 3, 10**6)
        writer = EventLog.open(tmp_path / "log.db")
        writer.rewind(30, "winner", "reason", kept, at=1.0)
        writer.close()
        rewinds, fork, page = next_page(log, ALL, sent, rewinds)
        assert (rewinds, fork) == (1, seq)
        assert [view.seq for view in page.events] == list(range(seq + 1, log.head() + 1))
        assert next_page(log, ALL, page.after, rewinds)[:2] == (1, None)


def test_who_is_behind_the_fork_is_told_nothing(tmp_path: Path) -> None:
    write_log(tmp_path / "log.db", History(3).take(60))
    writer = EventLog.open(tmp_path / "log.db")
    writer.rewind(30, "winner", "reason", [], at=1.0)
    writer.close()
    with LogReader.open(tmp_path / "log.db") as log:
        rewinds, fork, page = next_page(log, ALL, 3, 0)
        assert (rewinds, fork, page.events[0].seq) == (1, None, 4)


def test_what_a_rewind_interrupts_is_read_again(tmp_path: Path) -> None:
    write_log(tmp_path / "log.db", History(3).take(60))
    heads: list[int] = []

    def read(log: LogReader) -> int:
        heads.append(log.head())
        if len(heads) == 1:
            raise LogRewound("The log was rewound while it was being read: read it again.")
        return heads[-1]

    async def play() -> int:
        access = LogAccess(lambda: LogReader.open(tmp_path / "log.db"))
        try:
            return await access.read(read)
        finally:
            access.close()

    assert asyncio.run(play()) == heads[0] == heads[1]
