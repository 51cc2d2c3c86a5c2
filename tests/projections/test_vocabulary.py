"""Every event and command has words, and every table and column of projections.db a comment."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from events.base import Command, Event
from events.catalogue import EVENT_TYPES
from events.commands import COMMAND_TYPES
from projections import schema
from projections.command_words import asked
from projections.words import sentence


@pytest.mark.parametrize("event_type", EVENT_TYPES.values(), ids=EVENT_TYPES)
def test_every_event_has_a_sentence(event_type: type[Event]) -> None:
    assert sentence.dispatch(event_type) is not sentence.dispatch(Event)


@pytest.mark.parametrize("command_type", COMMAND_TYPES.values(), ids=COMMAND_TYPES)
def test_every_command_has_words(command_type: type[Command]) -> None:
    assert asked.dispatch(command_type) is not asked.dispatch(Command)


def test_an_event_without_words_is_an_error() -> None:
    class Unheard(Event, frozen=True):
        SUBJECT = "x"
        x: str

    with pytest.raises(TypeError, match="Unheard has no words"):
        sentence(Unheard(x=""))


def test_the_catalogue_lists_what_the_database_has(tmp_path: Path) -> None:
    schema.create(tmp_path / "projections.db")
    db = sqlite3.connect(tmp_path / "projections.db")
    real = {
        name: [row[1] for row in db.execute(f"PRAGMA table_xinfo({name})")]
        for name, kind in db.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')")
        if "_fts" not in name
    }
    listed = {entry.name: entry for entry in schema.catalogue()}
    assert listed.keys() == real.keys()
    for name, entry in listed.items():
        assert entry.comment, f"{name} has no comment"
        assert entry.kind == "view" or list(entry.columns) == real[name]
        assert all(entry.columns.values()), f"a column of {name} has no comment: {entry.columns}"


def test_every_view_can_be_read(tmp_path: Path) -> None:
    schema.create(tmp_path / "projections.db")
    db = sqlite3.connect(tmp_path / "projections.db")
    for entry in schema.catalogue():
        assert db.execute(f"SELECT * FROM {entry.name}").fetchall() == []


def test_foreign_keys_point_at_tables_and_columns_that_exist(tmp_path: Path) -> None:
    schema.create(tmp_path / "projections.db")
    db = sqlite3.connect(tmp_path / "projections.db")
    tables = {entry.name: entry.columns for entry in schema.catalogue() if entry.kind == "table"}
    query = "PRAGMA foreign_key_list({})"
    keys = [(name, row[2], row[4]) for name in tables for row in db.execute(query.format(name))]
    assert keys
    assert [key for key in keys if key[2] not in tables[key[1]]] == []
