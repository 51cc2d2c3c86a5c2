"""The model directories: found, readable, with room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from actors.settings import Settings
from api.cli.checks.finding import Finding
from api.cli.checks.home import room
from engines.store import ModelStore


def check(settings: Settings) -> Iterator[Finding]:
    """Findings on the model directories, and on what lies in them that can't be used."""
    for path in settings.read_only_model_paths:
        yield _read_only(path)
    for path in (*settings.writable_model_paths, settings.default_models_path):
        yield from _writable(path)
    yield from _stored(settings)


def _read_only(path: Path) -> Finding:
    if os.access(path, os.R_OK | os.X_OK):
        return Finding("ok", "models", f"{path} is readable")
    advice = "Mount it, or take it out of models_read_only_dirs."
    return Finding("fail", "models", f"{path}, a read-only models directory, can't be read", advice)


def _writable(path: Path) -> Iterator[Finding]:
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        advice = "Make it writable, or name another one with --models-dir."
        yield Finding("fail", "models", f"{path} can't be written", advice)
        return
    yield Finding("ok", "models", f"{path} {'is writable' if path.exists() else 'will be made when needed'}")
    yield room(existing, "models")


def _stored(settings: Settings) -> Iterator[Finding]:
    store = ModelStore(
        settings.read_only_model_paths, settings.writable_model_paths, settings.default_models_path
    )
    names = ", ".join(model.model_id for model in store.scan()) or "none"
    yield Finding("ok", "models", f"stored here: {names}")
    for problem in store.problems:
        yield Finding("warn", "models", f"{problem.path} can't be used: {problem.cause.message}")
