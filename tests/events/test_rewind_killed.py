"""A log that is rewound dies by SIGKILL at any moment: it has the old history or the new one, whole."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from log_samples import finish, query, start

from events.chain import DECISION_COLUMNS, EVENT_COLUMNS
from events.check import check
from events.drivers import STDLIB
from events.log import EventLog
from events.reader import LogReader

ROOT = Path(__file__).parents[2]
FORK = 20
ALL = 10**9


def histories(home: Path) -> tuple[Path, list[Path]]:
    """A log, and two files with histories after `FORK`, of which it has the first."""
    files: list[Path] = []
    for n, length in enumerate([150, 220]):
        log = EventLog.open(home / f"history-{n}.db")
        log.append([start(), *(finish(i) for i in range(1, FORK))])
        log.append([finish(10_000 * (n + 1) + i) for i in range(length)])
        log.close()
        with LogReader.open(log.path) as reader:
            files.append(home / f"history-{n}")
            files[-1].write_bytes(msgspec.msgpack.encode(reader.entries(FORK, ALL, ALL)))
    return home / "history-0.db", files


def kill_one(path: Path, files: list[Path], number: int, after_s: float) -> int:
    """Let the log be rewound from that number on, kill, and give the last number that was acknowledged."""
    script = Path(__file__).with_name("log_rewinder.py")
    command = [sys.executable, str(script), str(path), str(FORK), str(number), *map(str, files)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"0\n"
            time.sleep(after_s)
        finally:
            process.kill()
        said = process.stdout.read()
    return max([number, *(int(line) for line in said.split(b"\n")[:-1])])


def held(path: Path, where: str, prefix: str) -> tuple[list[tuple], list[tuple]]:
    """The rows of a history, from the log or from a branch."""
    connection = STDLIB.open(path, write=False)
    try:
        decisions = f"SELECT {DECISION_COLUMNS}, hash FROM {prefix}decisions WHERE {where} ORDER BY 1"
        events = f"SELECT {EVENT_COLUMNS}, hash FROM {prefix}events WHERE {where} ORDER BY 1"
        return query(connection, decisions), query(connection, events)
    finally:
        connection.close()


def kill_often(home: Path, kills: int) -> None:
    path, files = histories(home)
    whole = [held(home / f"history-{n}.db", f"decision_id > {FORK}", "") for n in range(2)]
    dice = random.Random(kills)
    number = 0
    for _ in range(kills):
        acknowledged = kill_one(path, files, number, dice.uniform(0.0, 0.15))
        found = check(path)
        assert found.ok, found
        number = len(found.branches)
        assert number in (acknowledged, acknowledged + 1)
        assert held(path, f"decision_id > {FORK}", "") == whole[number % 2]
        for branch in range(1, number + 1):
            assert held(path, f"branch = {branch}", "rejected_") == whole[(branch - 1) % 2]
        _still_append_only(path)
    assert number > kills // 3, "hardly anything was rewound"


def _still_append_only(path: Path) -> None:
    """No switch was left on: what is in the log can't be deleted, whoever tries."""
    connection = STDLIB.open(path, write=True)
    for table in ("decisions", "events"):
        with pytest.raises(STDLIB.error, match="the log is append-only"):
            query(connection, f"DELETE FROM {table} WHERE decision_id > {FORK}")
    connection.close()


def test_ten_kills_leave_the_old_or_the_new_history(tmp_path: Path):
    kill_often(tmp_path, 10)


@pytest.mark.slow
def test_fifty_kills_leave_the_old_or_the_new_history(tmp_path: Path):
    kill_often(tmp_path, 50)
