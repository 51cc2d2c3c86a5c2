"""Snapshots: equal to a replay, and never trusted where they do not fit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.histories import History, logged

from events.errors import LogMissing
from events.reader import LogReader
from projections import snapshot
from projections.snapshot import Snapshot, load_state
from projections.state import ClusterState


@pytest.fixture
def reader(tmp_path: Path) -> LogReader:
    return logged(tmp_path, History(3).take(400))


def in_order(state: ClusterState) -> bytes:
    """A state with the order of its entities, which deciders go by."""
    return msgspec.msgpack.encode(state)


def test_a_state_from_a_snapshot_is_the_replayed_one(reader: LogReader, tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    for seq in range(0, reader.head(), 37):
        snapshot.save(load_state(reader, upto=seq), reader, directory)
        assert in_order(load_state(reader, directory)) == in_order(load_state(reader))


def test_a_state_with_a_snapshot_reads_only_the_tail(reader: LogReader, tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    path = snapshot.save(load_state(reader, upto=reader.head() - 3), reader, directory)
    forged = msgspec.msgpack.decode(path.read_bytes(), type=Snapshot)
    forged.state.master = "the snapshot was used"
    path.write_bytes(msgspec.msgpack.encode(forged))
    assert load_state(reader, directory).master == "the snapshot was used"


def test_only_the_newest_are_kept(reader: LogReader, tmp_path: Path) -> None:
    saved = [snapshot.save(load_state(reader, upto=seq), reader, tmp_path) for seq in (9, 50, 100, 200)]
    assert sorted(tmp_path.glob("*.snapshot")) == saved[-2:]


def test_one_that_is_too_new_is_left_for_later(reader: LogReader, tmp_path: Path) -> None:
    for seq in (50, 200):
        snapshot.save(load_state(reader, upto=seq), reader, tmp_path)
    assert load_state(reader, tmp_path, upto=120) == load_state(reader, upto=120)
    assert len(list(tmp_path.glob("*.snapshot"))) == 2


@pytest.mark.parametrize("spoil", ["other log", "other code", "torn"])
def test_one_that_does_not_fit_is_removed(reader: LogReader, tmp_path: Path, spoil: str) -> None:
    directory = tmp_path / "snapshots"
    state = ClusterState(seq=20, master="nobody")
    path = snapshot.save(state, reader, directory)
    good = msgspec.msgpack.decode(path.read_bytes(), type=Snapshot)
    if spoil == "torn":
        path.write_bytes(path.read_bytes()[:-5])
    elif spoil == "other log":
        path.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(good, log_hash="ab" * 16)))
    else:
        path.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(good, code="ab" * 8)))
    assert load_state(reader, directory) == load_state(reader)
    assert not path.exists()


def test_the_next_best_is_taken(reader: LogReader, tmp_path: Path) -> None:
    snapshot.save(load_state(reader, upto=50), reader, tmp_path)
    newest = snapshot.save(load_state(reader, upto=100), reader, tmp_path)
    newest.write_bytes(b"")
    assert load_state(reader, tmp_path) == load_state(reader)
    assert [path.name for path in tmp_path.glob("*.snapshot")] == ["state-000000000000050.snapshot"]


def test_no_log_is_an_error_and_not_an_empty_state(tmp_path: Path) -> None:
    with pytest.raises(LogMissing):
        load_state(LogReader.open(tmp_path / "none.db"))
