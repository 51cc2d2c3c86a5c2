"""Checks answers against OpenAI's own schemas, which tests/data holds."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parent.parent / "data" / "openai-answers.schema.json"


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    document = json.loads(SCHEMAS.read_text())
    return Draft202012Validator({"$defs": document["$defs"], "$ref": f"#/$defs/{name}"})


def assert_openai(name: str, value: Any) -> None:
    """``value`` is valid against OpenAI's schema ``name``."""
    errors = [f"{error.json_path}: {error.message}" for error in _validator(name).iter_errors(value)]
    assert not errors, (errors, value)
