"""What a model id means: a model in the catalogue, in the store, at a path, or on the hub."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from engines import catalogue, hub, model_ids
from engines.model_errors import FetchError, StoreError, Unknown, refusal
from engines.store import ModelStore, StoredModel, read
from events.values import Cause, ModelCard, ModelSource


@dataclass(frozen=True, slots=True)
class Described:
    """A known model. ``path`` is empty where its files have yet to be fetched from ``source``."""

    card: ModelCard
    source: ModelSource
    path: str


def describe(model_id: str, *, store: ModelStore, offline: bool, hub_endpoint: str = "") -> Described:
    """Find a model by id, or by the absolute path of its directory (``~`` may stand for home).

    Raises `Unknown` with near matches where nobody knows it, another `ModelError` where it is known and
    can't be used.
    """
    if stored := _on_disk(model_id, store):
        return _stored(stored)
    name = model_ids.canonical(model_id)
    if name in catalogue.entries():
        card, source = catalogue.entries()[name]
        return Described(card, source, "")
    return _on_hub(name, store, offline, hub_endpoint)


def _on_disk(model_id: str, store: ModelStore) -> StoredModel | None:
    try:
        if not model_id.startswith(("/", "~")):
            return store.find(model_id)
        path = Path(model_id).expanduser().resolve()
        return read(path, model_ids.canonical(path.name))
    except (OSError, ValueError, RuntimeError) as error:  # no rights, no directory, a NUL, no such home
        message = f"{model_id!r} can't be read: {error}."
        raise StoreError(refusal("model_files_unreadable", message)) from error


def _stored(model: StoredModel) -> Described:
    return Described(model.card, model.source, str(model.path))


def _on_hub(name: str, store: ModelStore, offline: bool, endpoint: str) -> Described:
    if offline:
        raise Unknown(_unknown(name, "offline mode is on, so the hub is not asked", store))
    try:
        card, source = hub.describe(name, endpoint=endpoint)
    except FetchError as error:
        if error.cause.code in ("model_not_found", "hub_unreachable", "offline"):
            raise Unknown(_unknown(name, error.cause.message, store)) from error
        raise
    return Described(card, source, "")


def _unknown(name: str, reason: str, store: ModelStore) -> Cause:
    known = sorted({*catalogue.entries(), *(model.model_id for model in store.scan())})
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known are: {', '.join(known)}."
    message = f"There is no model '{name}' on this machine, and {reason.rstrip('.')}. {hint}"
    return refusal("model_unknown", message)
