"""Snapshots of `ClusterState`: a cache that saves reading a long log. Deleting them loses nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from events.ends import Base
from events.errors import LogRewound
from events.files import write_durably
from events.reader import LogReader
from projections import fingerprint
from projections.evolve import apply
from projections.state import ClusterState

KEEP = 2
"""Snapshots that `save` leaves in a directory, the newest ones."""

_BASE, _STATE = "base", "state"

_logger = logging.getLogger(__name__)


class Snapshot(msgspec.Struct, frozen=True):
    """A state with what it belongs to: the log (by the chain hash at ``seq``) and the code that folded it."""

    code: str
    seq: int
    log_hash: str
    state: ClusterState


class SnapshotUnfit(Exception):
    """Another node's snapshot can't be used here."""


_decoder = msgspec.msgpack.Decoder(Snapshot)


def pack(reader: LogReader, directory: Path | None, upto: int) -> bytes:
    """A snapshot of the state at event ``upto``, for a file or for a node that joins; see `load_state`.

    Raises `LogRewound` where the log is rewound meanwhile, because the state may then be of what it was.
    """
    return msgspec.msgpack.encode(_take(reader, directory, upto))


def save(reader: LogReader, directory: Path, upto: int) -> Path:
    """Write a snapshot of the state at event ``upto``, and remove all but the newest `KEEP`.

    That of a base goes once the log has its whole past: until then nothing else could replace it. Those
    beyond the head, of what a rewind took, go too. Raises `OSError` where the directory can't be written, and
    what `pack` raises.
    """
    snapshot = _take(reader, directory, upto)
    path = _write(msgspec.msgpack.encode(snapshot), directory, snapshot.seq)
    head, saved = reader.head(), _newest_first(directory, _STATE)
    void = [each for each in saved if _seq_of(each) > head]
    unwanted = [*void, *saved[len(void) + KEEP :]]
    if reader.base() is None:
        unwanted += _newest_first(directory, _BASE)
    for old in unwanted:
        old.unlink(missing_ok=True)
    return path


def save_near_head(reader: LogReader, directory: Path, within: int) -> None:
    """Have a usable snapshot no more than ``within`` events before the head; what `save` raises.

    After another version's snapshots all who need the state would else read the whole log, each for himself.
    """
    end = reader.head()
    if end <= within:
        return
    newest = next(_usable(reader, directory, end), None)
    missing = end - (newest.seq if newest is not None else 0)
    if missing > within:
        _logger.warning("Reading %d events of the log that no snapshot has; this may take a while", missing)
        save(reader, directory, end)


def save_base(packed: bytes, base: Base, directory: Path) -> None:
    """Keep the snapshot that another node packed at ``base``, for the log that begins after it.

    It is on the disk when this returns: the log would be of no use without it. Raises `SnapshotUnfit` where
    it was made by other code or is not of the base, and `OSError`.
    """
    try:
        snapshot = _decoder.decode(packed)
    except msgspec.MsgspecError as error:
        raise SnapshotUnfit(f"The snapshot can't be read: {error}") from error
    if snapshot.code != fingerprint.of_state():
        raise SnapshotUnfit(
            "The snapshot was made by another version of Cuebook: take the whole log, or bring both nodes to "
            "one version."
        )
    if (snapshot.seq, snapshot.log_hash) != (base.seq, base.event_hash):
        raise SnapshotUnfit(
            f"The snapshot is of event {snapshot.seq}, and the log begins after event {base.seq} of another."
        )
    directory.mkdir(parents=True, exist_ok=True)
    write_durably(_path(directory, _BASE, base.seq), packed)


def _take(reader: LogReader, directory: Path | None, upto: int) -> Snapshot:
    rewinds = reader.rewinds()
    state = load_state(reader, directory, upto)
    snapshot = Snapshot(fingerprint.of_state(), state.seq, reader.hash_at(state.seq), state)
    if reader.rewinds() != rewinds:
        raise LogRewound(f"The log was rewound while the state at event {state.seq} was being taken.")
    return snapshot


def _path(directory: Path, kind: str, seq: int) -> Path:
    return directory / f"{kind}-{seq:015d}.snapshot"


def _seq_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _write(packed: bytes, directory: Path, seq: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = _path(directory, _STATE, seq)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(packed)
    os.replace(fresh, path)
    return path


def load_state(reader: LogReader, directory: Path | None = None, upto: int | None = None) -> ClusterState:
    """The state at ``upto`` (default: the head), from the newest usable snapshot and the events after it.

    Raises `events.errors.LogIncomplete` where no snapshot is usable and the log still lacks its past.
    """
    while True:
        rewinds = reader.rewinds()
        end = reader.head() if upto is None else upto
        state = next(_usable(reader, directory, end), None) if directory is not None else None
        try:
            state = catch_up(state or ClusterState(), reader, end)
        except Exception:  # what comes after a rewind need not fit to what was before it
            if reader.rewinds() == rewinds:
                raise
        else:
            if reader.rewinds() == rewinds:
                return state
        _logger.info("The log was rewound while the state was loaded: loading it again")


def catch_up(state: ClusterState, reader: LogReader, upto: int | None = None) -> ClusterState:
    """Apply the events after the state's position up to ``upto`` (default: the head); returns the state."""
    for seq, epoch, at, event in reader.stream(after=state.seq, upto=upto):
        apply(state, seq, epoch, at, event)
    return state


def _usable(reader: LogReader, directory: Path, upto: int) -> Iterator[ClusterState]:
    """The states of the snapshots that fit, newest first. Those that never will are removed on the way."""
    for path in _newest_first(directory, _STATE) + _newest_first(directory, _BASE):
        if _seq_of(path) > upto:
            continue
        try:
            snapshot = _decoder.decode(path.read_bytes())
        except OSError as error:
            _logger.warning("The snapshot %s can't be read now: %s", path, error)
            continue
        except msgspec.MsgspecError as error:
            _discard(path, f"it can't be read: {error}")
            continue
        if snapshot.code != fingerprint.of_state():
            _discard(path, "it was made by another version of the code")
        elif snapshot.log_hash != reader.hash_at(snapshot.seq):
            _discard(path, "it is of another log")
        else:
            yield snapshot.state


def _discard(path: Path, why: str) -> None:
    _logger.info("Removing the snapshot %s: %s", path, why)
    path.unlink(missing_ok=True)


def _newest_first(directory: Path, kind: str) -> list[Path]:
    return sorted(directory.glob(f"{kind}-*.snapshot"), reverse=True)
