"""One file from the hub: resumed where it was cut, watched, cancelled, and verified before it counts.

`http_get` of huggingface_hub writes into a file of ours. Its `hf_hub_download` starts anew after every
interruption (since 2.4) and can't be cancelled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.file_download import http_get  # pyright: ignore[reportUnknownVariableType]
from huggingface_hub.utils import (
    build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
    disable_progress_bars,
)

from engines import manifest
from engines.hub_errors import ERRORS, explain, failed
from engines.model_errors import FetchCancelled

CUT = ".cut"
"""Suffix of a file that is not whole yet."""


@dataclass(frozen=True, slots=True)
class Remote:
    """One file as the hub states it: ``sha256`` for a large one (LFS), else ``blob_id``, git's hash."""

    name: str
    size: int
    sha256: str
    blob_id: str

    def matches(self, path: Path) -> bool:
        """True where the file at ``path`` has the size and the hash that the hub states."""
        if path.stat().st_size != self.size:
            return False
        if self.sha256:
            return manifest.sha256(path) == self.sha256
        return not self.blob_id or _git_blob_id(path) == self.blob_id


@dataclass(frozen=True, slots=True)
class Transfer:
    """Where files come from and go to, and who watches; ``progress(done, total)`` counts bytes."""

    model_id: str
    commit: str
    endpoint: str
    directory: Path
    progress: Callable[[int, int], None]
    cancelled: Callable[[], bool]

    def get(self, files: Sequence[Remote]) -> None:
        """Fetch the files that are not there yet. Raises `FetchError`, `FetchCancelled`."""
        disable_progress_bars("huggingface_hub.http_get")  # a program watches, and has the terminal
        total, before = sum(file.size for file in files), 0
        for file in files:
            final = self.directory / file.name
            if not (final.is_file() and file.matches(final)):
                self._get(file, final, before, total)
            before += file.size
            self.progress(before, total)

    def _get(self, file: Remote, final: Path, before: int, total: int) -> None:
        cut = final.with_name(final.name + CUT)
        url = hf_hub_url(self.model_id, file.name, revision=self.commit, endpoint=self.endpoint)
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if cut.is_file() and cut.stat().st_size > file.size:
            cut.unlink()
        with cut.open("ab") as target:
            start = target.tell()
            watched = _Watched(target, lambda size: self._watch(before + size, total))
            try:
                http_get(
                    url,
                    cast(BinaryIO, watched),
                    resume_size=start,
                    headers=headers,
                    expected_size=file.size,
                )
            except ERRORS as error:
                raise explain(error, self.model_id, self.endpoint) from error
        if not file.matches(cut):
            cut.unlink()
            reason = f"{file.name} did not arrive with the size and hash that the hub states"
            raise failed("download_corrupt", self.model_id, reason, "Try again", retryable=True)
        cut.replace(final)

    def _watch(self, done: int, total: int) -> None:
        if self.cancelled():
            raise FetchCancelled
        self.progress(done, total)


class _Watched:
    """The part of a binary file that `http_get` uses; calls ``watch(size)`` after every write."""

    def __init__(self, file: BinaryIO, watch: Callable[[int], None]) -> None:
        self._file = file
        self._watch = watch
        self.tell, self.seek, self.truncate = file.tell, file.seek, file.truncate

    def write(self, data: bytes) -> int:
        written = self._file.write(data)
        self._watch(self._file.tell())
        return written


def endpoint_or_default(endpoint: str) -> str:
    """The hub to ask: the one given, or that of ``HF_ENDPOINT``, or huggingface.co."""
    return endpoint or constants.ENDPOINT


def _git_blob_id(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
