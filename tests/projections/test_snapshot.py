"""Snapshots: equal to a replay, and never trusted where they do not fit."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from support.histories import History, logged

from events.catalogue import PeerRefused
from events.errors import LogIncomplete, LogMissing, LogRewound
from events.log import EventLog
from events.reader import LogReader
from events.values import Cause
from projections import fingerprint, snapshot
from projections.snapshot import Snapshot, SnapshotUnfit, load_state, pack, save_base
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
        snapshot.save(reader, directory, seq)
        assert in_order(load_state(reader, directory)) == in_order(load_state(reader))


def test_a_state_with_a_snapshot_reads_only_the_tail(reader: LogReader, tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    path = snapshot.save(reader, directory, reader.head() - 3)
    forged = msgspec.msgpack.decode(path.read_bytes(), type=Snapshot)
    forged.state.master = "the snapshot was used"
    path.write_bytes(msgspec.msgpack.encode(forged))
    assert load_state(reader, directory).master == "the snapshot was used"


def test_only_the_newest_are_kept(reader: LogReader, tmp_path: Path) -> None:
    saved = [snapshot.save(reader, tmp_path, seq) for seq in (9, 50, 100, 200)]
    assert sorted(tmp_path.glob("*.snapshot")) == saved[-2:]


def test_one_that_is_too_new_is_left_for_later(reader: LogReader, tmp_path: Path) -> None:
    for seq in (50, 200):
        snapshot.save(reader, tmp_path, seq)
    assert load_state(reader, tmp_path, upto=120) == load_state(reader, upto=120)
    assert len(list(tmp_path.glob("*.snapshot"))) == 2


@pytest.mark.parametrize("spoil", ["other log", "other code", "torn"])
def test_one_that_does_not_fit_is_removed(reader: LogReader, tmp_path: Path, spoil: str) -> None:
    directory = tmp_path / "snapshots"
    path = snapshot.save(reader, directory, 20)
    good = msgspec.msgpack.decode(path.read_bytes(), type=Snapshot)
    good.state.master = "nobody"
    if spoil == "torn":
        path.write_bytes(path.read_bytes()[:-5])
    elif spoil == "other log":
        path.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(good, log_hash="ab" * 16)))
    else:
        path.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(good, code="ab" * 8)))
    assert load_state(reader, directory) == load_state(reader)
    assert not path.exists()


def test_the_next_best_is_taken(reader: LogReader, tmp_path: Path) -> None:
    snapshot.save(reader, tmp_path, 50)
    newest = snapshot.save(reader, tmp_path, 100)
    newest.write_bytes(b"")
    assert load_state(reader, tmp_path) == load_state(reader)
    assert [path.name for path in tmp_path.glob("*.snapshot")] == ["state-000000000000050.snapshot"]


def test_after_an_upgrade_the_past_is_read_once(reader: LogReader, tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    snapshot.save(reader, directory, reader.head() - 30)
    snapshot.save_near_head(reader, directory, 30)
    (old,) = directory.iterdir()
    old.write_bytes(b"made by another version")
    snapshot.save_near_head(reader, directory, 30)
    (fresh,) = directory.iterdir()
    assert msgspec.msgpack.decode(fresh.read_bytes(), type=Snapshot).seq == reader.head()


def test_no_log_is_an_error_and_not_an_empty_state(tmp_path: Path) -> None:
    with pytest.raises(LogMissing):
        load_state(LogReader.open(tmp_path / "none.db"))


ALL = 10**9


def joined(reader: LogReader, path: Path, at: int) -> tuple[EventLog, bytes]:
    """A log that begins after decision ``at`` of another, and the other's snapshot there."""
    base = reader.base_at(at)
    log = EventLog.open(path)
    log.begin_after(base)
    return log, pack(reader, None, base.seq)


def test_a_node_that_joins_has_the_state_before_it_has_the_past(reader: LogReader, tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    last = reader.last_decision()
    log, packed = joined(reader, tmp_path / "joined.db", last - 50)
    with LogReader.open(log.path) as mine:
        save_base(packed, reader.base_at(last - 50), directory)
        assert in_order(load_state(mine, directory)) == in_order(load_state(reader, upto=mine.head()))
        log.append_entries(reader.entries(last - 50, ALL, ALL))
        for seq in range(mine.head() - 30, mine.head() + 1, 10):
            snapshot.save(mine, directory, seq)
        assert in_order(load_state(mine, directory)) == in_order(load_state(reader))
        with pytest.raises(LogIncomplete):
            load_state(mine, directory, upto=reader.base_at(last - 50).seq - 1)
        while (base := mine.base()) is not None:
            assert load_state(mine, directory, upto=mine.head() - 31).seq == mine.head() - 31
            log.backfill(reader.entries_upto(base.decision_id, 100, ALL))
        snapshot.save(mine, directory, mine.head())
        assert list(directory.glob("base-*")) == []
        assert in_order(load_state(mine)) == in_order(load_state(reader))
    log.close()


def test_a_base_s_snapshot_is_of_the_base(reader: LogReader, tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    log, packed = joined(reader, tmp_path / "joined.db", 100)
    log.close()
    with pytest.raises(SnapshotUnfit, match="the log begins after event"):
        save_base(packed, reader.base_at(110), directory)
    with pytest.raises(SnapshotUnfit, match="can't be read"):
        save_base(packed[:-1], reader.base_at(100), directory)
    old = msgspec.msgpack.encode(
        msgspec.structs.replace(msgspec.msgpack.decode(packed, type=Snapshot), code="x")
    )
    with pytest.raises(SnapshotUnfit, match="another version of Cuebook"):
        save_base(old, reader.base_at(100), directory)
    assert not directory.exists()


def test_a_snapshot_of_what_a_rewind_took_is_not_used(reader: LogReader, tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    log = EventLog.open(tmp_path / "log.db")
    snapshot.save(reader, directory, reader.head())
    fork = reader.last_decision() - 20
    log.rewind(fork, "w", "r", [], at=1.0)
    assert in_order(load_state(reader, directory)) == in_order(load_state(reader))
    drafts = History(3).take(400)[fork:]
    refused = Cause(code="late", message="It came after the rewind.")
    log.append([msgspec.structs.replace(drafts[0], events=[], rejection=refused)])
    renamed = msgspec.structs.replace(drafts[0].command, command_id="again")
    log.append([msgspec.structs.replace(drafts[0], command=renamed), *drafts[1:]])
    assert in_order(load_state(reader, directory)) == in_order(load_state(reader))
    assert list(directory.iterdir()) == []
    log.close()


def test_one_that_a_rewind_left_beyond_the_head_makes_room(reader: LogReader, tmp_path: Path) -> None:
    directory = tmp_path / "snapshots"
    log = EventLog.open(tmp_path / "log.db")
    for seq in (reader.head() - 1, reader.head()):
        snapshot.save(reader, directory, seq)
    log.rewind(reader.last_decision() - 20, "w", "r", [], at=1.0)
    saved = snapshot.save(reader, directory, reader.head())
    assert list(directory.iterdir()) == [saved]
    log.close()


def test_a_state_is_never_of_two_histories(
    reader: LogReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "snapshots"
    log = EventLog.open(tmp_path / "log.db")
    fork = reader.last_decision() - 20
    snapshot.save(reader, directory, reader.head() - 5)
    drafts = History(3).take(400)[fork:]
    renamed = msgspec.structs.replace(drafts[0].command, command_id="again")
    refused = PeerRefused(node_id="node-anna", host="10.0.0.9", reason="It shifts what follows by one.")
    hash_at = reader.hash_at

    def rewound_after_hash_at(seq: int) -> str:
        found = hash_at(seq)
        if reader.rewinds() == 0:
            log.rewind(fork, "w", "r", [], at=1.0)
            log.append([msgspec.structs.replace(drafts[0], command=renamed, events=[refused]), *drafts])
        return found

    monkeypatch.setattr(reader, "hash_at", rewound_after_hash_at)
    assert in_order(load_state(reader, directory)) == in_order(load_state(reader))
    log.close()


def test_one_that_can_not_be_read_right_now_stays(
    reader: LogReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_handle_left(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    saved = snapshot.save(reader, tmp_path, 50)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", no_handle_left)
        patch.setattr(fingerprint, "of_state", str)
        assert in_order(load_state(reader, tmp_path)) == in_order(load_state(reader))
    assert saved.exists()


def test_a_snapshot_is_not_packed_while_the_log_is_rewound(
    reader: LogReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog.open(tmp_path / "log.db")
    hash_at = reader.hash_at

    def rewound_before_hash_at(seq: int) -> str:
        log.rewind(reader.last_decision() - 1, "w", "r", [], at=1.0)
        return hash_at(seq)

    monkeypatch.setattr(reader, "hash_at", rewound_before_hash_at)
    with pytest.raises(LogRewound, match="was being taken"):
        pack(reader, None, reader.head())
    log.close()
