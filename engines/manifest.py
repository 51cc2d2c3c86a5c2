"""The integrity manifest of a stored model: every file's size and sha256, and where it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engines.model_errors import StoreError, refusal
from events.values import ModelSource

NAME = "cuebook-manifest.json"


class File(msgspec.Struct, frozen=True):
    """One file of a model."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a model's directory must hold. Files that it does not name are not looked at."""

    source: ModelSource
    files: dict[str, File]


def write(directory: Path, source: ModelSource, known: Mapping[str, str] | None = None) -> Manifest:
    """Write the manifest of all files in ``directory``. ``known`` are sha256 that need no second reading."""
    digests = known or {}
    files = {
        path.name: File(path.stat().st_size, digests.get(path.name) or sha256(path))
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name != NAME
    }
    manifest = Manifest(source, files)
    (directory / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return manifest


def read(directory: Path) -> Manifest | None:
    """The manifest, or None for a model that was put there by hand. Raises `StoreError` for a broken one."""
    try:
        return msgspec.json.decode((directory / NAME).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"{directory / NAME} can't be read ({error}); delete the model and fetch it again."
        raise StoreError(refusal("model_files_broken", message)) from error


def check_sizes(directory: Path, manifest: Manifest) -> None:
    """Compare names and sizes: what a scan can afford. Raises `StoreError` naming the files that differ."""
    _raise_for(
        directory, [name for name, file in manifest.files.items() if _size(directory / name) != file.size]
    )


def verify(directory: Path) -> None:
    """Read every file and compare its sha256. Raises `StoreError` naming the files that differ."""
    if manifest := read(directory):
        check_sizes(directory, manifest)
        differ = [name for name, file in manifest.files.items() if sha256(directory / name) != file.sha256]
        _raise_for(directory, differ)


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _raise_for(directory: Path, differ: list[str]) -> None:
    if differ:
        message = (
            f"{directory} differs from its manifest in {', '.join(differ)}; delete it and fetch it again."
        )
        raise StoreError(refusal("model_files_broken", message))
