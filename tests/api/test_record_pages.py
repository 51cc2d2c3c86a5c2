"""The pages of a followed log: in order, and anew from the fork where the log was rewound."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer
from support.histories import History, write_log

from actors.gateway import Gateway
from api.app import build_app
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


class Reading:
    """What the record's routes need of a gateway."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def reader(self) -> LogReader:
        return LogReader.open(self._path)

    @asynccontextmanager
    async def tail(self) -> AsyncGenerator[Callable[[int], Any]]:
        yield lambda _: asyncio.Event().wait()


def followed(path: Path, last_event_id: str, count: int) -> list[tuple[str, str, Any]]:
    """The first events of a stream that goes on after this id: id, name and data of each."""

    async def main() -> list[tuple[str, str, Any]]:
        reading = Reading(path)
        async with TestClient(TestServer(build_app(cast(Gateway, reading)))) as client:
            headers = {"Last-Event-ID": last_event_id}
            async with client.get("/events?follow=1", headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                await answer.content.readuntil(b"\n\n")
                blocks = [(await answer.content.readuntil(b"\n\n")).decode() for _ in range(count)]
        split = [dict(line.split(": ", 1) for line in block.splitlines() if line) for block in blocks]
        return [(each["id"], each["event"], json.loads(each["data"])) for each in split]

    return asyncio.run(main())


@pytest.mark.parametrize("again", [False, True])
def test_who_comes_back_after_a_rewind_is_told(tmp_path: Path, again: bool) -> None:
    path = tmp_path / "log.db"
    write_log(path, History(3).take(60))
    with LogReader.open(path) as log:
        head, early, late = log.head(), log.base_at(20).seq, log.base_at(30).seq
        kept = log.entries(30, 10, 10**6)
        writer = EventLog.open(path)
        writer.rewind(30, "winner", "reason", kept, at=1.0)
        now = log.head()
        if again:
            [(last, _, _)] = followed(path, str(now - 1), 2)[1:]
            assert last == f"{late + 1}.1"
            writer.rewind(20, "winner", "reason", log.entries(20, 15, 10**6), at=2.0)
        writer.close()
        fork = early if again else late
        count = 2 if again else 1
        for last in [str(head), *([f"{now}.1"] if again else [])]:
            told, after = followed(path, last, 2)
            assert told == (f"{fork}.{count}", "rewound", {"after": fork})
            assert after[0] == f"{fork + 1}.{count}"
        for last in (f"{fork + 1}.{count}", f"{fork + 1}.{count + 1}"):
            [(_, name, data)] = followed(path, last, 1)
            assert (name, data["seq"]) == (data["event"]["type"], fork + 2)


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
