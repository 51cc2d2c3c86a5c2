"""The documentation is complete: whatever exists is described, with its fields, types and defaults."""

from __future__ import annotations

import inspect
import re
import sqlite3
from argparse import ArgumentParser
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import events.commands
import events.expert_commands
import events.experts
import events.values
from actors.settings import PREFIX, Settings
from api.cli.main import COMMANDS, parser_of
from api.cli.setting_flags import SETTING_HELP, flags_of
from events.catalogue import EVENT_TYPES
from events.commands import COMMAND_TYPES
from events.log import EventLog
from events.status import RunnerStatus
from projections import schema

DOCS = Path(__file__).parents[2] / "docs"


def structs_of(module: object) -> dict[str, type[msgspec.Struct]]:
    """The Structs that a module defines, by name."""
    return {
        name: kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
    }


DESCRIBED: dict[str, type[msgspec.Struct]] = {
    **EVENT_TYPES,
    **structs_of(events.commands),
    **structs_of(events.expert_commands),
    **structs_of(events.values),
    **structs_of(events.experts),
    **{kind.__name__: kind for kind in get_args(RunnerStatus)},
}


def sections(page: str, level: str = "###") -> dict[str, str]:
    """The sections of a page by their headings."""
    parts = re.split(rf"^{level} (.+)$", (DOCS / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> dict[str, list[str]]:
    """The rows of a section's tables by the name in their first column."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found[cells[0].strip("`")] = cells[1:]
    return found


def written_type(kind: type[msgspec.Struct], field: str) -> str:
    """A field's type as the source has it."""
    return next(found[field] for base in kind.__mro__ if field in (found := inspect.get_annotations(base)))


@pytest.mark.parametrize("name", DESCRIBED)
def test_events_page_describes_every_field(name: str) -> None:
    section = sections("events.md").get(name)
    assert section, f"docs/events.md has no section on {name}"
    table, kind = rows(section), DESCRIBED[name]
    assert list(table) == list(kind.__struct_fields__), f"fields of {name} in docs/events.md"
    for field, (type_cell, meaning) in table.items():
        assert type_cell.strip("`").replace("\\|", "|") == written_type(kind, field), f"{name}.{field}"
        assert len(meaning) > 2, f"{name}.{field} has no meaning in docs/events.md"


@pytest.mark.parametrize("name", EVENT_TYPES)
def test_events_page_says_class_version_and_subject(name: str) -> None:
    kind, section = EVENT_TYPES[name], " ".join(sections("events.md")[name].split())
    durability = "observation" if kind.OBSERVATION else "decision"
    assert f"Class: {durability}. Version {kind.VERSION}. Subject: `{kind.SUBJECT}`. Made by" in section


def test_events_page_agrees_with_itself_on_who_makes_what() -> None:
    """An event names the commands that make it, a command the events that it makes."""
    page = {name: " ".join(text.split()) for name, text in sections("events.md").items()}
    by_event = {(name, command) for name in EVENT_TYPES for command in _names(page[name], "Made by")}
    by_command = {(event, name) for name in COMMAND_TYPES for event in _names(page[name], "Makes")}
    assert by_event == by_command
    assert {name for name, _ in by_event} == set(EVENT_TYPES)
    assert {command for _, command in by_event} == set(COMMAND_TYPES)


def _names(section: str, after: str) -> list[str]:
    found = re.search(rf"{after} ([^.]*)\.", section)
    return re.findall(r"`(\w+)`", found[1]) if found else []


def test_settings_page_has_every_setting_with_flags_and_default() -> None:
    table = rows((DOCS / "settings.md").read_text())
    assert sorted(table) == sorted(Settings.__struct_fields__)
    for name, default in zip(Settings.__struct_fields__, Settings.__struct_defaults__, strict=True):
        flags, shown, meaning = table[name]
        assert re.findall(r"`([^`]+)`", flags) == flags_of(name)
        if isinstance(default, bool):
            assert shown == ("yes" if default else "no")
        elif default != "":
            assert shown == f"`{default}`"
        assert meaning


def test_every_setting_has_a_help_text() -> None:
    assert list(SETTING_HELP) == list(Settings.__struct_fields__)


def test_settings_page_names_the_prefix() -> None:
    assert f"`{PREFIX}`" in (DOCS / "settings.md").read_text()


def test_schema_page_has_every_table_view_and_column(tmp_path: Path) -> None:
    schema.create(tmp_path / "projections.db")
    EventLog.open(tmp_path / "log.db").close()
    page = sections("sql-schema.md")
    for entry in schema.catalogue():
        described = page.get(entry.name)
        assert described, f"docs/sql-schema.md has no section on {entry.name}"
        assert entry.comment.lower() in " ".join(described.split()).lower(), (
            f"{entry.name} is described otherwise"
        )
        for column, meaning in entry.columns.items():
            assert rows(described)[column][1].replace("\\|", "|") == meaning, f"{entry.name}.{column}"
    for file, prefix in (("projections.db", ""), ("log.db", "log.")):
        for name, columns in _columns(tmp_path / file).items():
            section = page.get(prefix + name)
            assert section, f"docs/sql-schema.md has no section on {prefix}{name}"
            missing = [column for column in columns if f"`{column}`" not in section]
            assert not missing, f"{prefix}{name} in docs/sql-schema.md"


def _columns(path: Path) -> dict[str, list[str]]:
    """The columns of every table and view of a database, those of full-text indexes apart."""
    connection = sqlite3.connect(path)
    try:
        names = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')"
        ).fetchall()
        return {
            name: [row[1] for row in connection.execute(f"PRAGMA table_xinfo({name})")]
            for (name,) in names
            if "_fts" not in name and not name.startswith("sqlite_")
        }
    finally:
        connection.close()


def _parsers() -> dict[str, ArgumentParser]:
    """Every parser by the words that reach it, such as ``replay why``."""
    found: dict[str, ArgumentParser] = {}
    for name in COMMANDS:
        parser = parser_of(name)
        found[name] = parser
        for action in parser._actions:
            choices = action.choices if action.nargs == "A..." and isinstance(action.choices, dict) else {}
            found.update({f"{name} {word}": sub for word, sub in choices.items()})
    return found


@pytest.mark.parametrize("words", list(_parsers()))
def test_cli_page_has_every_command_and_argument(words: str) -> None:
    section = sections("cli.md", "##").get(f"cuebook {words}")
    assert section, f"docs/cli.md has no section on cuebook {words}"
    for action in _parsers()[words]._actions:
        if action.dest in (*Settings.__struct_fields__, "help") or action.nargs == "A...":
            continue
        shown = action.option_strings or [str(action.metavar or action.dest)]
        for word in shown:
            assert re.search(rf"`{re.escape(word)}\b", section), f"cuebook {words}: {word} in docs/cli.md"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
