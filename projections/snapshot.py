"""Snapshots of `ClusterState`: a cache that saves reading a long log. Deleting them loses nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from events.errors import LogRewound
from events.reader import LogReader
from projections import fingerprint
from projections.evolve import apply
from projections.state import ClusterState

KEEP = 2
"""Snapshots that `save` leaves in a directory, the newest ones."""

_logger = logging.getLogger(__name__)


class Snapshot(msgspec.Struct, frozen=True):
    """A state with what it belongs to: the log (by the chain hash at ``seq``) and the code that folded it."""

    code: str
    seq: int
    log_hash: str
    state: ClusterState


_decoder = msgspec.msgpack.Decoder(Snapshot)


def save(state: ClusterState, reader: LogReader, directory: Path) -> Path:
    """Write a snapshot of ``state``, which is of ``reader``'s log, and remove all but the newest `KEEP`.

    Raises `OSError` where the directory can't be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    snapshot = Snapshot(fingerprint.of_state(), state.seq, reader.hash_at(state.seq), state)
    path = directory / f"state-{state.seq:015d}.snapshot"
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.msgpack.encode(snapshot))
    os.replace(fresh, path)
    for old in _newest_first(directory)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def load_state(reader: LogReader, directory: Path | None = None, upto: int | None = None) -> ClusterState:
    """The state at ``upto`` (default: the head), from the newest usable snapshot and the events after it.

    Raises `events.errors.LogIncomplete` where no snapshot is usable and the log still lacks its past.
    """
    while True:
        end = reader.head() if upto is None else upto
        state = next(_usable(reader, directory, end), None) if directory is not None else None
        try:
            return catch_up(state or ClusterState(), reader, end)
        except LogRewound:
            _logger.info("The log was rewound while the state was loaded: loading it again")


def catch_up(state: ClusterState, reader: LogReader, upto: int | None = None) -> ClusterState:
    """Apply the events after the state's position up to ``upto`` (default: the head); returns the state."""
    for seq, epoch, at, event in reader.stream(after=state.seq, upto=upto):
        apply(state, seq, epoch, at, event)
    return state


def _usable(reader: LogReader, directory: Path, upto: int) -> Iterator[ClusterState]:
    """The states of the snapshots that fit, newest first. Those that never will are removed on the way."""
    for path in _newest_first(directory):
        if int(path.stem.removeprefix("state-")) > upto:
            continue
        try:
            snapshot = _decoder.decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError) as error:
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


def _newest_first(directory: Path) -> list[Path]:
    return sorted(directory.glob("state-*.snapshot"), reverse=True)
