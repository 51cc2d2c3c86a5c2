"""A fingerprint of the code that a cache was made by, so that other code never trusts it."""

from __future__ import annotations

import hashlib
from importlib.resources import files

_STATE = (
    "events/base.py",
    "events/values.py",
    "events/status.py",
    "events/experts.py",
    "events/catalogue.py",
    "events/expert_events.py",
    "events/codec.py",
    "events/upcasting.py",
    "projections/state.py",
    "projections/evolve.py",
    "projections/evolve_experts.py",
)
_ROWS = (
    *_STATE,
    "events/commands.py",
    "events/expert_commands.py",
    "projections/schema.sql",
    "projections/views.sql",
    "projections/schema.py",
    "projections/batch.py",
    "projections/entity_rows.py",
    "projections/event_rows.py",
    "projections/expert_rows.py",
    "projections/failures.py",
    "projections/mirror.py",
    "projections/phrases.py",
    "projections/words.py",
    "projections/expert_words.py",
    "projections/command_words.py",
)


def of_state() -> str:
    """Changes with whatever could change the `ClusterState` that a log folds to."""
    return _digest(_STATE)


def of_rows() -> str:
    """Changes with whatever could change a row or a view of projections.db."""
    return _digest(_ROWS)


def _digest(sources: tuple[str, ...]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for source in sources:
        package, name = source.split("/")
        digest.update(files(package).joinpath(name).read_bytes())
    return digest.hexdigest()
