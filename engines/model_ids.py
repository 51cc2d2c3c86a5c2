"""Model ids and the directories they name: ``name`` or ``organisation/name``."""

from __future__ import annotations

import re
from pathlib import Path

from engines.model_errors import Unknown, refusal

PARTIAL = ".partial"
"""Suffix of a directory whose files are still on their way."""

LONGEST = 200
"""Characters of an id: a directory is called by it, with a suffix at times, and names have 255 bytes."""

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ID = re.compile(rf"{_PART}(?:/{_PART})?")


def canonical(model_id: str) -> str:
    """The id as it is kept: ``org--name``, a spelling of file systems, becomes ``org/name``.

    Raises `Unknown` for what is no model id, such as a path that climbs out of the models' directory.
    """
    if "/" not in model_id and model_id.count("--") == 1:
        model_id = model_id.replace("--", "/")
    if len(model_id) > LONGEST or not _ID.fullmatch(model_id) or model_id.endswith(PARTIAL):
        message = (
            f"'{model_id[:LONGEST]}' is no model id. An id is a name or organisation/name, of letters, "
            f"digits, dots, hyphens and underscores, {LONGEST} at most."
        )
        raise Unknown(refusal("invalid_model_id", message))
    return model_id


def directories(root: Path, model_id: str) -> list[Path]:
    """Where under ``root`` the model may be; the first is where it is put."""
    return list(dict.fromkeys([root / model_id, root / model_id.replace("/", "--")]))
