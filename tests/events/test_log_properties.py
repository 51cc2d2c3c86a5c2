"""Any event, any batches: what goes in comes out."""

from __future__ import annotations

import string
import tempfile
import types
import typing
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from events.base import Event
from events.catalogue import EVENT_TYPES, EpochStarted
from events.check import check
from events.codec import COMMANDS, EVENTS, encode
from events.commands import COMMAND_TYPES, Facts
from events.log import EventLog
from events.reader import LogReader
from events.record import Draft
from events.values import Cause

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


def values(hint: object) -> st.SearchStrategy:
    """Values of a type as a class of the catalogue declares it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return st.deferred(lambda: instances(hint))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(TEXT, values(arguments[1]), max_size=3)
    return {
        str: TEXT,
        int: st.integers(-(2**53), 2**53),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
    }[hint]


def instances(cls: type[msgspec.Struct]) -> st.SearchStrategy:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{name: values(hints[name]) for name in cls.__struct_fields__})


EVENT = st.sampled_from(list(EVENT_TYPES.values())).flatmap(instances)
COMMAND = st.sampled_from(list(COMMAND_TYPES.values())).flatmap(instances)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    command = draw(COMMAND)
    identified = type(command)(
        **{
            **{name: getattr(command, name) for name in command.__struct_fields__},
            "command_id": draw(st.text(string.ascii_letters, min_size=1, max_size=3)),
        }
    )
    rejection = draw(st.none() | instances(Cause))
    return Draft(
        command=identified,
        facts=draw(instances(Facts)),
        decider=draw(TEXT),
        decider_version=draw(st.integers(1, 9)),
        events=[] if rejection else draw(st.lists(EVENT, max_size=4)),
        rejection=rejection,
    )


@given(EVENT)
@settings(max_examples=300, deadline=None)
def test_events_survive_their_text(event: Event):
    text = encode(event)
    decoded = EVENTS.decode(type(event).__name__, event.VERSION, text)
    assert decoded == event
    assert encode(decoded) == text


@given(COMMAND)
@settings(max_examples=300, deadline=None)
def test_commands_survive_their_text(command):
    text = encode(command)
    decoded = COMMANDS.decode(type(command).__name__, command.VERSION, text)
    assert decoded == command
    assert encode(decoded) == text


def test_equal_values_give_equal_text():
    one = Cause(code="c", message="m", detail={"b": 1, "a": 2})
    two = Cause(code="c", message="m", detail={"a": 2, "b": 1})
    assert one == two
    assert encode(one) == encode(two)


@given(st.lists(st.lists(drafts(), max_size=5), max_size=5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_batches_come_out_as_they_went_in(batches: list[list[Draft]], reopen: bool):
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "log.db"
        log = EventLog.open(path)
        first: dict[str, Draft] = {}
        answers = []
        for batch in batches:
            for draft in batch:
                first.setdefault(draft.command.command_id, draft)
            answers += zip(batch, log.append(batch), strict=True)
            if reopen:
                log.close()
                log = EventLog.open(path)
        with LogReader.open(path) as reader:
            _compare(reader, list(first.values()))
            for draft, answer in answers:
                assert answer == reader.decision_of(draft.command.command_id)
        assert check(path).ok
        log.close()


def _compare(reader: LogReader, expected: list[Draft]) -> None:
    """The log holds these drafts, in order, numbered without gaps."""
    decisions = list(reader.decisions())
    seq = 0
    for number, (draft, got) in enumerate(zip(expected, decisions, strict=True), 1):
        started = [event.epoch for event in draft.events if isinstance(event, EpochStarted)]
        assert got.decision_id == number
        assert got.first_seq == seq + 1
        assert got.epoch == (started or [draft.facts.epoch])[0]
        assert (got.command, got.facts, got.decider) == (draft.command, draft.facts, draft.decider)
        assert (got.rejection, got.at) == (draft.rejection, draft.facts.now)
        for event, record in zip(draft.events, got.events, strict=True):
            seq += 1
            assert (record.seq, record.decision_id, record.event) == (seq, number, event)
            assert (record.epoch, record.origin, record.at) == (got.epoch, got.origin, got.at)
    assert [event for *_, event in reader.stream()] == [event for draft in expected for event in draft.events]
