"""Every body that was ever written can still be read, and today's bodies have the shape that VERSION says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from events.catalogue import EVENT_TYPES
from events.codec import COMMANDS, EVENTS, decode_cause, decode_facts, encode
from events.commands import COMMAND_TYPES

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))
CLASSES = EVENT_TYPES | COMMAND_TYPES
WHAT_TO_DO = (
    "the shape of {0} changed: raise its VERSION, add the step from the old shape to events.upcasting, "
    "and add tests/events/corpus/{0}.<new version>.json beside the old file"
)


def _name(path: Path) -> tuple[str, int]:
    type_name, version, *_ = path.name.split(".")
    return type_name, int(version)


def _decode(path: Path):
    type_name, version = _name(path)
    codec = EVENTS if type_name in EVENT_TYPES else COMMANDS
    return codec.decode(type_name, version, path.read_text())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_every_old_body_is_read(path: Path):
    assert type(_decode(path)).__name__ == _name(path)[0]


@pytest.mark.parametrize("type_name", CLASSES)
def test_todays_shape_is_in_the_corpus(type_name: str):
    current = (type_name, CLASSES[type_name].VERSION)
    bodies = [path for path in CORPUS if _name(path) == current]
    assert bodies, f"add tests/events/corpus/{type_name}.{current[1]}.json"
    for path in bodies:
        assert encode(_decode(path)) == path.read_text().rstrip("\n"), WHAT_TO_DO.format(type_name)


def test_every_variant_of_a_status_and_an_outcome_is_in_the_corpus():
    tags = {msgspec.json.decode(path.read_bytes()).get("status", {}).get("status") for path in CORPUS}
    outcomes = {msgspec.json.decode(path.read_bytes()).get("outcome", {}).get("outcome") for path in CORPUS}
    assert tags - {None} == _tags(EVENT_TYPES["RunnerStatusChanged"], "status")
    assert outcomes - {None} == _tags(COMMAND_TYPES["ReportTask"], "outcome")


def _tags(cls: type, field: str) -> set[str]:
    info = msgspec.inspect.type_info(cls)
    (union,) = [each.type for each in info.fields if each.name == field]
    return {each.tag for each in union.types}


def test_events_and_commands_share_no_name():
    assert not EVENT_TYPES.keys() & COMMAND_TYPES.keys()


@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=EVENT_TYPES)
def test_the_subject_is_a_text_field(cls: type):
    fields = {each.name: each.type for each in msgspec.inspect.type_info(cls).fields}
    assert isinstance(fields[cls.SUBJECT], msgspec.inspect.StrType)


def test_facts_and_causes_keep_their_shape():
    """They have no version of their own: a change of these is a change of `events.schema.FORMAT`."""
    facts = '{"now":1700000000.25,"seed":"s","epoch":3,"node_id":"node-1"}'
    cause = '{"code":"too_big","message":"It does not fit.","detail":{"device":"cpu:0","free":5,"x":0.5}}'
    assert encode(decode_facts(facts)) == facts
    assert encode(decode_cause(cause)) == cause
