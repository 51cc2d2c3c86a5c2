"""Old bodies become today's, step by step. The classes here are the test's own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from log_samples import history, write_log

from events.base import Event
from events.codec import Codec
from events.errors import LogTooNew, Unreadable
from events.reader import LogReader
from events.upcasting import UPCASTS, Body, Upcasts


class Moved(Event, frozen=True):
    VERSION = 3
    SUBJECT = "who"
    who: str
    metres: float
    to: list[str]


class Stayed(Event, frozen=True):
    SUBJECT = "who"
    who: str


def _name_the_mover(body: Body) -> Body:
    """1 to 2: ``name`` became ``who``."""
    return {**{key: value for key, value in body.items() if key != "name"}, "who": body["name"]}


def _list_the_places(body: Body) -> Body:
    """2 to 3: ``feet`` became ``metres``, and ``to`` may be several."""
    return {"type": body["type"], "who": body["who"], "metres": body["feet"] * 0.25, "to": [body["to"]]}


STEPS: Upcasts = {("Moved", 1): _name_the_mover, ("Moved", 2): _list_the_places}
TYPES: dict[str, type[Event]] = {"Moved": Moved, "Stayed": Stayed}
NOW = Moved(who="ann", metres=2.0, to=["hall"])


def codec(steps: Upcasts = STEPS) -> Codec[Event]:
    return Codec(Moved | Stayed, TYPES, steps)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, '{"type":"Moved","name":"ann","feet":8,"to":"hall"}'),
        (2, '{"type":"Moved","who":"ann","feet":8,"to":"hall"}'),
        (3, '{"type":"Moved","who":"ann","metres":2.0,"to":["hall"]}'),
    ],
)
def test_every_version_reads_as_the_newest(version: int, body: str):
    assert codec().decode("Moved", version, body) == NOW


def test_a_missing_step_is_named():
    with pytest.raises(Unreadable, match="no step from version 2 of Moved to the next"):
        codec({("Moved", 1): _name_the_mover}).decode("Moved", 1, '{"type":"Moved","name":"a"}')


def test_a_step_that_makes_the_wrong_shape_is_noticed():
    with pytest.raises(Unreadable, match=r"A Moved of version 2 can't be read: .*metres"):
        codec({("Moved", 2): lambda body: body}).decode("Moved", 2, '{"type":"Moved","who":"a"}')


def test_a_body_that_is_not_json():
    with pytest.raises(Unreadable, match="A Stayed of version 1 can't be read"):
        codec().decode("Stayed", 1, '{"type":"Stayed","who":')


def test_newer_versions_and_types_ask_for_a_newer_program():
    with pytest.raises(LogTooNew, match="A Moved has version 4 and this version of Cuebook reads up to 3"):
        codec().decode("Moved", 4, "{}")
    with pytest.raises(LogTooNew, match="knows no Teleported"):
        codec().decode("Teleported", 1, "{}")


def test_no_event_needs_an_upcast_yet():
    assert UPCASTS == {}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("version = 2", LogTooNew, "Event 4: A TaskFinished has version 2"),
        ("version = 0", Unreadable, "Event 4: events.upcasting has no step from version 0 of TaskFinished"),
        ('body = \'{"type":"TaskFinished"}\'', Unreadable, "Event 4: A TaskFinished of version 1 can't be"),
        ("type = 'Future', body = '{\"type\":\"Future\"}'", LogTooNew, "Event 4: .* knows no Future"),
    ],
)
def test_readers_name_the_event_they_can_not_read(
    tmp_path: Path, change: str, error: type[Exception], message: str
):
    path = write_log(tmp_path / "log.db", history())
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER events_refuse_update")
    connection.execute(f"UPDATE events SET {change} WHERE seq = 4")
    connection.commit()
    connection.close()
    with LogReader.open(path) as reader:
        for read in (reader.stream, reader.events, reader.decisions):
            with pytest.raises(error, match=message):
                list(read())
        assert len(list(reader.stream(upto=3))) == 3
