"""The writer dies by SIGKILL at any moment: what it had acknowledged is there, whole, and it can go on."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest
from log_samples import finish
from log_writer import numbered

from events.check import check
from events.errors import LogLocked
from events.log import EventLog
from events.reader import LogReader

ROOT = Path(__file__).parents[2]


@contextmanager
def writer(path: Path, first: int) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A process that writes, and has begun to, with its standard output. Killed at the end."""
    script = Path(__file__).with_name("log_writer.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(path), str(first)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"0\n"
            yield process, process.stdout
        finally:
            process.kill()


def kill_one(path: Path, first: int, after_s: float) -> int:
    """Let a writer run from number ``first``, kill it, and give the number it last acknowledged."""
    with writer(path, first) as (process, output):
        time.sleep(after_s)
        process.kill()
        said = output.read()
    return max([first, *(int(line) for line in said.split(b"\n")[:-1])])


def kill_often(path: Path, kills: int) -> None:
    dice = random.Random(kills)
    done = 0
    for _ in range(kills):
        acknowledged = kill_one(path, done, dice.uniform(0.0, 0.12))
        found = check(path)
        assert found.ok, found
        assert found.decisions >= acknowledged
        log = EventLog.open(path)
        retried = [numbered(n) for n in range(acknowledged, acknowledged + 400)]
        answers = log.append(retried)
        log.close()
        assert [answer.decision_id for answer in answers] == [n + acknowledged + 1 for n in range(400)]
        done = acknowledged + 400
    with LogReader.open(path) as reader:
        for n, decision in enumerate(reader.decisions()):
            draft = numbered(n)
            assert (decision.command, decision.rejection) == (draft.command, draft.rejection)
            assert [record.event for record in decision.events] == draft.events
    assert n + 1 == done
    assert check(path, full=True).ok


def test_nothing_acknowledged_is_lost_in_twenty_kills(tmp_path: Path):
    kill_often(tmp_path / "log.db", 20)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_fifty_kills(tmp_path: Path):
    kill_often(tmp_path / "log.db", 50)


@pytest.mark.parametrize(
    ("module", "call", "number"),
    [(os, "pwrite", errno.ENOSPC), (fcntl, "flock", errno.ENOLCK)],
    ids=["full disk", "no locks in this file system"],
)
def test_what_prevents_the_lock_is_said_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, call: str, number: int
):
    def prevented(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(module, call, prevented)
        with pytest.raises(OSError, match=os.strerror(number)):
            EventLog.open(tmp_path / "log.db")
    EventLog.open(tmp_path / "log.db").close()


def test_a_second_writing_process_is_refused_with_the_firsts_pid(tmp_path: Path):
    path = tmp_path / "log.db"
    with writer(path, 0) as (process, _):
        with pytest.raises(LogLocked, match=f"written by the process with pid {process.pid}: stop it"):
            EventLog.open(path)
        process.kill()
        process.wait()
        log = EventLog.open(path)
        log.append([finish(10**6)])
        log.close()
    assert check(path).ok


def test_a_follower_in_another_process_sees_everything_once(tmp_path: Path):
    path = tmp_path / "log.db"
    with writer(path, 0), LogReader.open(path) as reader:
        seqs: list[int] = []
        decision_ids: list[int] = []
        while len(seqs) < 3000:
            assert reader.wait(len(seqs), timeout=20)
            seqs += [seq for seq, *_ in reader.stream(after=len(seqs))]
            decision_ids += [each.decision_id for each in reader.decisions(after=len(decision_ids))]
    assert seqs == list(range(1, len(seqs) + 1))
    assert decision_ids == list(range(1, len(decision_ids) + 1))
