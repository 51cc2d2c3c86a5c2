"""Files from the hub: resumed where they were cut, watched, cancelled, and verified before they count.

The requests are huggingface_hub's (session, token, proxies), the loop is ours: its `hf_hub_download` starts
anew after every interruption (since 2.4) and can't be cancelled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from huggingface_hub import constants, get_session, hf_hub_url
from huggingface_hub.utils import (
    build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
    hf_raise_for_status,
)

from engines import manifest
from engines.hub_errors import ERRORS, explain, failed
from engines.model_errors import FetchCancelled

CUT = ".cut"
"""Suffix of a file that is not whole yet."""

CHUNK_BYTES = 1024**2
"""Bytes between two looks at whether the fetch is still wanted."""

TIMEOUT_S = 30.0
"""Seconds without a byte after which a connection counts as broken."""


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
        total, before = sum(file.size for file in files), 0
        for file in files:
            final = self.directory / file.name
            if not (final.is_file() and file.matches(final)):
                self._get(file, final, before, total)
            before += file.size
            self.progress(before, total)

    def _get(self, file: Remote, final: Path, before: int, total: int) -> None:
        cut = final.with_name(final.name + CUT)
        with cut.open("ab") as target:
            broken = target.tell() < file.size
            while broken:
                broken = self._breaks_off(file, target, lambda size: self._watch(before + size, total))
        if not file.matches(cut):
            cut.unlink()
            reason = f"{file.name} did not arrive with the size and hash that the hub states"
            raise failed("download_corrupt", self.model_id, reason, "Try again", retryable=True)
        cut.replace(final)

    def _breaks_off(self, file: Remote, target: BinaryIO, watch: Callable[[int], None]) -> bool:
        """Append to ``target`` what it lacks. True where the connection broke after new bytes."""
        start = target.tell()
        url = hf_hub_url(self.model_id, file.name, revision=self.commit, endpoint=self.endpoint)
        headers = {**build_hf_headers(), "Accept-Encoding": "identity", "Range": f"bytes={start}-"}
        try:
            with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response:
                hf_raise_for_status(response)
                if response.status_code != HTTPStatus.PARTIAL_CONTENT:
                    target.truncate(0)
                for chunk in response.iter_bytes(CHUNK_BYTES):
                    target.write(chunk)
                    watch(target.tell())
                    if target.tell() > file.size:
                        break
        except ERRORS as error:
            if isinstance(error, OSError) or target.tell() <= start:
                raise explain(error, self.model_id, self.endpoint) from error
            return True
        return False

    def _watch(self, done: int, total: int) -> None:
        if self.cancelled():
            raise FetchCancelled
        self.progress(done, total)


def endpoint_or_default(endpoint: str) -> str:
    """The hub to ask: the one given, or that of ``HF_ENDPOINT``, or huggingface.co."""
    return endpoint or constants.ENDPOINT


def _git_blob_id(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
