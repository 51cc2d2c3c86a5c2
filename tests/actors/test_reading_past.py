"""A node that starts on a long log, or on something that is none."""

from __future__ import annotations

from pathlib import Path

from support.histories import History, logged

from actors.node import read_past
from actors.replica import Paths
from events.drivers import STDLIB


def test_a_long_log_has_a_snapshot_before_the_actors_start(tmp_path: Path) -> None:
    with logged(tmp_path, History(3).take(400)) as reader:
        paths = Paths(tmp_path / "log.db", tmp_path / "snapshots", STDLIB)
        read_past(paths, at_most=reader.head())
        assert not paths.snapshots.exists()
        read_past(paths, at_most=10)
        assert [path.name for path in paths.snapshots.iterdir()] == [f"state-{reader.head():015d}.snapshot"]


def test_what_is_no_log_is_left_to_the_journal(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "log.db", tmp_path / "snapshots", STDLIB)
    read_past(paths)
    for content in (b"", b"no database at all, but long enough to be looked at" * 100):
        paths.log.write_bytes(content)
        read_past(paths)
        assert paths.log.read_bytes() == content
