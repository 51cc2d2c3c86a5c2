"""Models from the Hugging Face hub: the card from the small files first, then all files, verified.

Token, proxies, certificates and ``HF_ENDPOINT`` are huggingface_hub's own settings. Code in a repository
is never fetched. Files come over HTTP, not Xet, so that a cut one is resumed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.hf_api import RepoSibling

from engines import cards, weights
from engines.hub_errors import ERRORS, explain, failed
from engines.hub_files import CUT, Remote, Transfer, endpoint_or_default
from events.values import ModelCard, ModelSource

TIMEOUT_S = 10.0
"""Seconds that the hub may take to answer a question about a model."""

_DESCRIBING = ("config.json", "tokenizer_config.json", weights.INDEX)
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken")


@dataclass(frozen=True, slots=True)
class Repository:
    """A model's repository at one commit, with the files at its top level."""

    model_id: str
    commit: str
    files: dict[str, Remote]
    n_params: int


def describe(model_id: str, *, revision: str = "", endpoint: str = "") -> tuple[ModelCard, ModelSource]:
    """Card of a model, and its source with the commit that ``revision`` (a branch, tag or commit) is now.

    Raises `FetchError` where the hub can't be asked or has no such model, `CardError` where it can't be
    served.
    """
    hub = endpoint_or_default(endpoint)
    repository = look_up(model_id, revision=revision, endpoint=hub)
    if "config.json" not in repository.files:
        fix = "Choose a repository in the format of transformers or MLX"
        raise failed("model_files_missing", model_id, "it has no config.json", fix)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        transfer = Transfer(model_id, repository.commit, hub, directory, _ignore, _never)
        transfer.get([file for name, file in repository.files.items() if name in (*_DESCRIBING, *_TEMPLATES)])
        card = cards.card_from_config(
            model_id,
            cards.read_config(directory),
            weight_bytes=sum(file.size for file in _weights(repository, directory)),
            n_params=repository.n_params,
            has_chat_template=cards.has_chat_template(directory),
        )
    return card, ModelSource(kind="hub", location=model_id, revision=repository.commit)


def download(
    source: ModelSource,
    directory: Path,
    *,
    progress: Callable[[int, int], None],
    cancelled: Callable[[], bool],
    endpoint: str = "",
) -> dict[str, str]:
    """Fetch a model's files into ``directory``, going on where an earlier call stopped.

    ``progress(done, total)`` counts bytes of the weight files. Returns the sha256 of the files for which
    the hub states it. Raises `FetchError`, `FetchCancelled`.
    """
    hub = endpoint_or_default(endpoint)
    repository = look_up(source.location, revision=source.revision, endpoint=hub)
    small = [file for name, file in repository.files.items() if name.endswith(_SUFFIXES)]
    Transfer(source.location, repository.commit, hub, directory, _ignore, cancelled).get(small)
    large = _weights(repository, directory)
    Transfer(source.location, repository.commit, hub, directory, progress, cancelled).get(large)
    _drop_others(directory, {file.name for file in (*small, *large)})
    return {file.name: file.sha256 for file in (*small, *large) if file.sha256}


def look_up(model_id: str, *, revision: str, endpoint: str) -> Repository:
    """What the hub has under an id, at a branch, tag or commit. Raises `FetchError`."""
    try:
        info = HfApi(endpoint=endpoint).model_info(
            model_id, revision=revision or None, files_metadata=True, timeout=TIMEOUT_S
        )
    except ERRORS as error:
        raise explain(error, model_id, endpoint) from error
    files = [_remote(file) for file in info.siblings or [] if "/" not in file.rfilename]
    n_params = info.safetensors.total if info.safetensors else 0
    return Repository(model_id, info.sha or revision, {file.name: file for file in files}, n_params)


def _remote(file: RepoSibling) -> Remote:
    return Remote(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else "", file.blob_id or "")


def _weights(repository: Repository, directory: Path) -> list[Remote]:
    if weights.INDEX in repository.files:
        names = weights.indexed(directory / weights.INDEX)
    else:
        names = weights.chosen({name for name in repository.files if name.endswith(".safetensors")})
    if missing := sorted(set(names) - set(repository.files)):
        reason = f"its repository lacks {', '.join(missing)}, which its index names"
        raise failed("model_files_missing", repository.model_id, reason, "Tell its owner, or choose another")
    if not names:
        fix = "Choose a repository that has its weights in safetensors"
        raise failed("model_files_missing", repository.model_id, "it has no .safetensors files", fix)
    return [repository.files[name] for name in names]


def _drop_others(directory: Path, wanted: set[str]) -> None:
    """Delete what an attempt at another revision left."""
    for path in directory.iterdir():
        if path.is_file() and path.name.removesuffix(CUT) not in wanted:
            path.unlink()


def _ignore(_done: int, _total: int) -> None:
    return


def _never() -> bool:
    return False
