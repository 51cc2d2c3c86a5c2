"""`Mirror`: the one writer of projections.db, which it keeps in step with the log."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from events.base import Event
from events.reader import LogReader
from events.record import Committed, Recorded
from projections import event_rows, schema
from projections.batch import Batch, Place
from projections.command_words import asked, subject
from projections.entity_rows import track, write_touched
from projections.evolve import apply
from projections.failures import failure_of
from projections.phrases import moment
from projections.snapshot import load_state
from projections.state import ClusterState
from projections.words import sentence

_BATCH = 1_000
"""Decisions in one transaction while the mirror catches up."""

_SENTENCES = 3
"""Sentences that a decision's reason quotes of its events; the timeline has all of them."""


class Position(NamedTuple):
    """How far into the log the tables go."""

    decision_id: int
    seq: int


class Mirror:
    """The open database. Used from one thread; readers open it ``mode=ro`` and see whole decisions only."""

    def __init__(self, connection: sqlite3.Connection, position: Position, state: ClusterState) -> None:
        """Use `open`."""
        self._connection = connection
        self._state = track(state)
        self._batch = Batch()
        self.position = position

    @classmethod
    def open(cls, path: Path, reader: LogReader, snapshots: Path | None = None) -> Mirror:
        """Open the tables of ``reader``'s log where they stand.

        A file that is missing, broken, of another log, or made by other code is made anew, empty; `catch_up`
        fills it. ``snapshots`` is a directory that speeds up finding the state at that position.
        """
        position = _position(path, reader)
        if position is None:
            remove(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            schema.create(path)
            position = Position(0, 0)
        state = load_state(reader, snapshots, upto=position.seq)
        return cls(_connect(path), position, state)

    def apply(self, committed: Sequence[Committed]) -> None:
        """Write decisions, in order, with the new position in one transaction. Old ones are passed over.

        Raises `projections.evolve.OutOfOrder` where some are missing; the mirror must then be opened anew,
        as after any other error: what was written before stays.
        """
        new = [decision for decision in committed if decision.decision_id > self.position.decision_id]
        if not new:
            return
        for decision in new:
            self._decision(decision)
        self._batch.upsert("position", ("id",), _position_row(new[-1], self._state.seq))
        with _transaction(self._connection):
            self._batch.write(self._connection)
        self.position = Position(new[-1].decision_id, self._state.seq)

    def catch_up(self, reader: LogReader, upto: int | None = None) -> None:
        """Apply everything that the log has, or has up to a decision, and the tables have not."""
        decisions = reader.decisions(after=self.position.decision_id, upto=upto)
        while batch := list(islice(decisions, _BATCH)):
            self.apply(batch)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _decision(self, decision: Committed) -> None:
        sentences = [self._event(recorded) for recorded in decision.events]
        n_events = len(sentences)
        cause = decision.rejection
        row = {
            "decision_id": decision.decision_id,
            "at": moment(decision.at),
            "command": type(decision.command).__name__,
            "subject": subject(decision.command),
            "asked": asked(decision.command),
            "outcome": "rejected" if cause else "accepted" if n_events else "nothing to do",
            "reason": cause.message if cause else _shortened(sentences),
            "reason_code": cause.code if cause else None,
            "n_events": n_events,
            "first_seq": decision.first_seq if n_events else None,
            "last_seq": decision.first_seq + n_events - 1 if n_events else None,
            "epoch": decision.epoch,
            "origin": decision.origin,
            "command_id": decision.command_id,
            "decider": decision.decider,
            "decider_version": decision.decider_version,
        }
        self._batch.insert("decisions", row)

    def _event(self, recorded: Recorded) -> str:
        """Write what an event says and touches; returns its sentence."""
        event, state = recorded.event, self._state
        place = Place(recorded.seq, moment(recorded.at), recorded.decision_id, _instance_id(state, event))
        apply(state, recorded.seq, recorded.epoch, recorded.at, event)
        write_touched(self._batch, state, place.seq, place.at)
        event_rows.write(event, self._batch, place)
        failure = failure_of(event)
        if failure is not None:
            event_rows.write_failure(self._batch, place, failure)
        words = sentence(event)
        row = {
            "seq": place.seq,
            "at": place.at,
            "type": type(event).__name__,
            "subject": event.subject,
            "sentence": words,
            "instance_id": place.instance_id,
            "decision_id": place.decision_id,
        }
        self._batch.insert("timeline", row)
        return words


def rebuild(log_path: Path, projections_path: Path, as_far_as: Path | None = None) -> Position:
    """Make projections.db from nothing, beside the old one, and put it in its place when it is whole.

    It goes no further than other tables of the log, ``as_far_as``, where these are given. No mirror may have
    the old one open. Returns how far it goes.
    """
    fresh = projections_path.with_name(projections_path.name + ".new")
    remove(fresh)
    with LogReader.open(log_path) as reader:
        end = _position(as_far_as, reader) if as_far_as is not None else None
        mirror = Mirror.open(fresh, reader)
        mirror.catch_up(reader, end and end.decision_id)
        mirror.close()
    remove(projections_path)
    os.replace(fresh, projections_path)
    return mirror.position


def remove(path: Path) -> None:
    """Remove a database with its side files, where there is one."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _position(path: Path, reader: LogReader) -> Position | None:
    """Where usable tables stand; None where there are none."""
    if not path.exists():
        return None
    connection = sqlite3.connect(path)
    try:
        if schema.stored_version(connection) != schema.version():
            return None
        row = connection.execute("SELECT decision_id, command_id, seq, at FROM position").fetchone()
    except sqlite3.DatabaseError:
        return None
    finally:
        connection.close()
    if row is None:
        return None
    decision = reader.decision(row[0])
    if decision is None or (decision.command_id, moment(decision.at)) != (row[1], row[3]):
        return None  # a command that is sent again after a rewind can get the same place in the log
    return Position(row[0], row[2])


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA recursive_triggers = ON")
    return connection


class _transaction:
    """A write transaction that is committed, or rolled back where its body raises."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._connection.execute("COMMIT" if error is None else "ROLLBACK")


def _position_row(decision: Committed, seq: int) -> dict[str, str | int]:
    return {
        "id": 1,
        "decision_id": decision.decision_id,
        "command_id": decision.command_id,
        "seq": seq,
        "at": moment(decision.at),
    }


def _instance_id(state: ClusterState, event: Event) -> str | None:
    """The instance that an event concerns, known before it is applied: a task's end takes the task away."""
    task = state.tasks.get(event.subject)
    return task.instance_id if task is not None else getattr(event, "instance_id", None)


def _shortened(sentences: list[str]) -> str:
    more = len(sentences) - _SENTENCES
    return "; ".join(sentences[:_SENTENCES]) + (f"; and {more} more" if more > 0 else "")
