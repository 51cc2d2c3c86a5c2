"""What a cache was made by is known by all the code that could change it."""

from __future__ import annotations

import ast
from pathlib import Path

from projections import fingerprint

ROOT = Path(__file__).parents[2]
WORDS_ONLY = {"events/errors.py"}


def imported(source: str) -> set[str]:
    """The modules of ours that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / source).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = node.module.replace(".", "/")
            found |= {f"{module}.py", *(f"{module}/{each.name}.py" for each in node.names)}
    return {each for each in found if (ROOT / each).is_file()}


def behind(*sources: str) -> set[str]:
    """These modules and all that they rest on."""
    found: set[str] = set()
    left = list(sources)
    while left:
        source = left.pop()
        if source not in found:
            found.add(source)
            left += imported(source)
    return found


def test_the_state_s_covers_events_upcasts_and_evolve():
    assert behind("projections/evolve.py") <= set(fingerprint._STATE)
    assert {"events/upcasting.py", "events/codec.py"} <= set(fingerprint._STATE)


def test_the_rows_s_covers_the_words_of_commands_too():
    rows = behind("projections/entity_rows.py", "projections/event_rows.py", "projections/command_words.py")
    assert rows - WORDS_ONLY <= set(fingerprint._ROWS)
