"""The state at any point of the log, and what changed between two points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from events.base import Value
from events.reader import LogReader
from projections.snapshot import load_state
from projections.state import ClusterState

_ENTITIES = {
    "nodes": "node",
    "models": "model",
    "downloads": "download",
    "instances": "instance",
    "runners": "runner",
    "tasks": "task",
    "experts": "experts",
    "links": "link",
}
_POSITION = {"seq", "at"}
_DERIVED = {"open_tasks"}


class Change(msgspec.Struct, frozen=True):
    """One difference between two states, in JSON-able values.

    ``field`` is empty where the whole entity came (``before`` None) or went (``after`` None). ``entity`` is
    ``cluster`` with an empty ``id`` for what belongs to no entity.
    """

    entity: str
    id: str
    field: str
    before: Any
    after: Any


class Unreachable(Exception):
    """A position that the log has not, or not any more."""


def state_at(reader: LogReader, seq: int, snapshots: Path | None = None) -> ClusterState:
    """The state right after event ``seq``; 0 is the empty state. Raises `Unreachable` beyond the head."""
    head = reader.head()
    if not 0 <= seq <= head:
        raise Unreachable(f"There is no event {seq}: the log has events 1 to {head}.")
    return load_state(reader, snapshots, upto=seq)


def state_at_time(reader: LogReader, at: float, snapshots: Path | None = None) -> ClusterState:
    """The state at a time (Unix seconds): after the last event that is not later."""
    return load_state(reader, snapshots, upto=reader.seq_at(at))


def diff(before: ClusterState, after: ClusterState) -> list[Change]:
    """What is different in ``after``, by entity in the order of `ClusterState`, then id, then field."""
    return [*_cluster(before, after), *_entities(before, after)]


def _cluster(before: ClusterState, after: ClusterState) -> Iterator[Change]:
    for field in fields(ClusterState):
        if field.name in _ENTITIES or field.name in _POSITION | _DERIVED:
            continue
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            yield Change("cluster", "", field.name, old, new)


def _entities(before: ClusterState, after: ClusterState) -> Iterator[Change]:
    for name, entity in _ENTITIES.items():
        old: dict[Any, Value] = getattr(before, name)
        new: dict[Any, Value] = getattr(after, name)
        for key in sorted(old.keys() | new.keys()):
            yield from _entity(entity, _id(entity, key), old.get(key), new.get(key))


def _entity(entity: str, name: str, old: Value | None, new: Value | None) -> Iterator[Change]:
    if old is None or new is None:
        if old is not new:
            yield Change(entity, name, "", _plain(old), _plain(new))
        return
    for field in old.__struct_fields__:
        was, now = getattr(old, field), getattr(new, field)
        if was != now:
            yield Change(entity, name, field, _plain(was), _plain(now))


def _id(entity: str, key: str | tuple[str, str]) -> str:
    if isinstance(key, str):
        return key
    return " to ".join(key) if entity == "link" else " of ".join(reversed(key))


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value)
