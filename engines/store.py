"""The model store: read-only directories first, then writable ones, then the default.

A model's directory is ``<root>/<name>``, ``<root>/<org>/<name>`` or ``<root>/<org>--<name>``.
New models go to the first writable directory with room, under a ``.partial`` name until they are whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from engines import manifest, model_ids
from engines.cards import card_from_directory
from engines.gguf_import import import_gguf, weight_bytes
from engines.model_errors import ModelError, StoreError, refusal
from events.values import Cause, ModelCard, ModelSource

RESERVE_BYTES = 512 * 1024**2
"""Bytes of a disk that no model may take: the log must always find room."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A whole model on this machine. ``size_bytes`` is what its directory takes."""

    model_id: str
    card: ModelCard
    path: Path
    size_bytes: int
    source: ModelSource


@dataclass(frozen=True, slots=True)
class Problem:
    """A directory that looks like a model and is none that can be used, with the reason."""

    path: Path
    cause: Cause


@dataclass(slots=True)
class ModelStore:
    """The models of one node. `scan` refreshes ``problems``."""

    read_only: Sequence[Path]
    writable: Sequence[Path]
    default: Path
    problems: list[Problem] = field(default_factory=list[Problem])

    def scan(self) -> list[StoredModel]:
        """Every usable model, the first of each id in the search order. Broken ones become ``problems``."""
        found: dict[str, StoredModel] = {}
        self.problems = []
        for root in self._roots():
            for path, model_id in self._candidates(root):
                if model_id not in found and (stored := self._try(path, model_id)):
                    found[model_id] = stored
        return list(found.values())

    def find(self, model_id: str) -> StoredModel | None:
        """The model, or None. Raises `Unknown` for a malformed id, `ModelError` for unusable files."""
        name = model_ids.canonical(model_id)
        broken: ModelError | None = None
        for path in _present(self._roots(), name):
            try:
                return read(path, name)
            except ModelError as error:
                broken = broken or error
        if broken is not None:
            raise broken
        return None

    def place_for(self, size_bytes: int, model_id: str) -> Path:
        """The writable directory for a model: the first with room, yet before it one that has a part of it.

        What is there of it already needs no more room. Raises `StoreError` with the numbers.
        """
        roots = dict.fromkeys((*self.writable, self.default))
        there = {root: _held_bytes(_partial(_final(root, model_id))) for root in roots}
        room = {root: _free_bytes(root) + there[root] for root in roots}
        for root in sorted(roots, key=lambda root: not there[root]):
            if room[root] >= size_bytes + RESERVE_BYTES:
                return root
        rooms = ", ".join(f"{root} has {_gb(size)}" for root, size in room.items())
        message = (
            f"No models directory has room: {_gb(size_bytes)} are needed and {_gb(RESERVE_BYTES)} must stay "
            f"free; {rooms}. Delete a model, or name a directory on another disk."
        )
        raise StoreError(refusal("disk_full", message, needed_bytes=size_bytes))

    def import_directory(self, path: Path, model_id: str) -> StoredModel:
        """Copy a model from a local directory into the store. Raises `ModelError` where it is unusable."""
        card_from_directory(path, model_id)
        files = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
        size = sum(file.stat().st_size for file in files)

        def fill(partial: Path) -> None:
            for file in files:
                if file.name != manifest.NAME:
                    shutil.copyfile(file, partial / file.name)

        return self._import(model_id, size, fill, ModelSource(kind="directory", location=str(path)))

    def import_gguf(self, path: Path, model_id: str) -> StoredModel:
        """Convert a GGUF file into the store, see `engines.gguf_import`. Raises `ModelError`."""
        size = weight_bytes(path)
        source = ModelSource(kind="directory", location=str(path))
        return self._import(model_id, size, lambda partial: import_gguf(path, partial), source)

    def remove(self, model_id: str) -> None:
        """Delete a model's files, also those of a download that was given up.

        Raises `StoreError` where there are none, or only read-only ones.
        """
        name = model_ids.canonical(model_id)
        roots = (*self.writable, self.default)
        partials = (_partial(_final(root, name)) for root in dict.fromkeys(roots))
        found = [*filter(Path.is_dir, partials), *islice(_present(roots, name), 1)]
        if not found:
            kept = next(_present(self.read_only, name), None)
            where = f"{kept} is in a read-only directory" if kept else "it is not in the store"
            raise StoreError(refusal("model_not_removable", f"{name} can't be deleted: {where}."))
        for path in found:
            shutil.rmtree(path)

    def _import(
        self, model_id: str, size: int, fill: Callable[[Path], None], source: ModelSource
    ) -> StoredModel:
        name = model_ids.canonical(model_id)
        if (existing := self.find(name)) is not None:
            message = f"{name} is in the store already ({existing.path}); delete it, or choose another id."
            raise StoreError(refusal("model_exists", message))
        partial = begin(self.place_for(size, name), name, resume=False)
        try:
            fill(partial)
            return read(finish(partial, source), name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _roots(self) -> Iterator[Path]:
        yield from dict.fromkeys((*self.read_only, *self.writable, self.default))

    def _try(self, path: Path, model_id: str) -> StoredModel | None:
        try:
            return read(path, model_id)
        except ModelError as error:
            self.problems.append(Problem(path, error.cause))
        except OSError as error:
            self.problems.append(_unreadable(path, error))
        return None

    def _candidates(self, root: Path) -> list[tuple[Path, str]]:
        try:
            return list(_candidates(root))
        except OSError as error:
            self.problems.append(_unreadable(root, error))
            return []


def read(path: Path, model_id: str) -> StoredModel:
    """The model in a directory, in the store or not. Raises `ModelError` where it can't be used."""
    card = card_from_directory(path, model_id)
    kept = manifest.read(path)
    if kept is not None:
        manifest.check_sizes(path, kept)
    size = _held_bytes(path)
    source = kept.source if kept else ModelSource(kind="directory", location=str(path))
    return StoredModel(model_id, card, path, size, source)


def begin(root: Path, model_id: str, *, resume: bool) -> Path:
    """The directory in which a model's files gather. With ``resume`` an earlier attempt's are kept.

    Raises `StoreError` where the model would lie inside of another one, or others lie inside of its place.
    """
    final = _final(root, model_id)
    _check_apart(root, final, model_id)
    partial = _partial(final)
    if not resume:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    return partial


def finish(partial: Path, source: ModelSource, known: Mapping[str, str] | None = None) -> Path:
    """Check a model, give it its manifest and its name; what had the name before is replaced.

    ``known`` are sha256 of files that need not be read again. Raises `ModelError` where it is not whole.
    """
    final = partial.with_name(partial.name.removesuffix(model_ids.PARTIAL))
    card_from_directory(partial, final.name)
    manifest.write(partial, source, known)
    if final.exists():
        shutil.rmtree(final)
    return partial.rename(final)


def _final(root: Path, model_id: str) -> Path:
    return model_ids.directories(root, model_id)[0]


def _partial(final: Path) -> Path:
    return final.with_name(final.name + model_ids.PARTIAL)


def _check_apart(root: Path, final: Path, model_id: str) -> None:
    """An organisation's directory is no model's, and a model's is no organisation's."""
    organisation = final.parent
    if organisation != root and _looks_like_model(organisation):
        other = f"{organisation} is a model itself"
    elif final.is_dir() and not _looks_like_model(final) and any(path.is_dir() for path in final.iterdir()):
        other = f"{final} holds other models"
    else:
        return
    raise StoreError(refusal("model_exists", f"{model_id} can't be stored: {other}. Choose another id."))


def _present(roots: Iterable[Path], name: str) -> Iterator[Path]:
    places = (place for root in roots for place in model_ids.directories(root, name))
    return filter(_looks_like_model, places)


def _candidates(root: Path) -> Iterator[tuple[Path, str]]:
    for path in _subdirectories(root):
        if _looks_like_model(path):
            yield path, _id_of(path.name)
        else:
            for child in filter(_looks_like_model, _subdirectories(path)):
                yield child, f"{path.name}/{child.name}"


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(path, refusal("model_files_unreadable", f"{path} can't be read: {error}."))


def _subdirectories(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    visible = (path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    return sorted(path for path in visible if path.suffix != model_ids.PARTIAL)


def _looks_like_model(path: Path) -> bool:
    return (path / "config.json").is_file() or any(path.glob("*.safetensors"))


def _id_of(name: str) -> str:
    organisation, separator, model = name.partition("--")
    return f"{organisation}/{model}" if separator and organisation and model else name


def _free_bytes(root: Path) -> int:
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _held_bytes(directory: Path) -> int:
    """Bytes of the files in a directory; 0 where there is none."""
    if not directory.is_dir():
        return 0
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
