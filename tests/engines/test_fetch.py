import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.hub_server import COMMIT, HubServer

from engines import hub, manifest
from engines.cards import card_from_directory
from engines.fetch import fetch
from engines.hub_files import CUT
from engines.model_errors import FetchCancelled, FetchError, StoreError, Unknown
from engines.resolve import describe
from engines.store import ModelStore
from events.values import ModelSource

ID = "acme/tiny-Instruct"
SOURCE = ModelSource(kind="hub", location=ID, revision=COMMIT)


@pytest.fixture(scope="module")
def repository(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with enough ballast to be cut in the middle, a picture and code that nobody needs."""
    path = tmp_path_factory.mktemp("repository")
    for file in tiny.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    weights = load_file(path / "model.safetensors")
    weights["ballast"] = np.arange(2_000_000, dtype=np.float32)
    save_file(weights, path / "model.safetensors")
    (path / "modeling_tiny.py").write_text("raise SystemExit")
    (path / "logo.png").write_bytes(b"\x89PNG")
    return path


@pytest.fixture
def server(repository: Path) -> Iterator[HubServer]:
    with HubServer({ID: repository}) as running:
        yield running


def fetch_from(
    server: HubServer,
    root: Path,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    seen: list[tuple[int, int]] | None = None,
    source: ModelSource = SOURCE,
    offline: bool = False,
) -> Path:
    card, _ = hub.describe(ID, endpoint=server.url)
    progress = (lambda *_: None) if seen is None else (lambda done, total: seen.append((done, total)))
    return fetch(source, card, root, progress, cancelled, offline, endpoint=server.url)


def test_the_card_comes_from_the_small_files_alone(server: HubServer, repository: Path) -> None:
    card, source = hub.describe(ID, endpoint=server.url)
    assert source == SOURCE
    assert card.n_layers == card_from_directory(repository).n_layers
    assert card.weight_bytes == (repository / "model.safetensors").stat().st_size
    assert card.has_chat_template
    assert "model.safetensors" not in {name for name, _ in server.ranges}


def test_a_fetch_brings_what_a_model_needs_and_nothing_else(
    server: HubServer, repository: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    path = fetch_from(server, tmp_path, seen=seen)
    assert path == tmp_path / "acme" / "tiny-Instruct"
    names = {file.name for file in path.iterdir()}
    assert "modeling_tiny.py" not in names
    assert "logo.png" not in names
    for name in names - {manifest.NAME}:
        assert (path / name).read_bytes() == (repository / name).read_bytes()
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == (repository / "model.safetensors").stat().st_size
    manifest.verify(path)
    assert ModelStore(read_only=[], writable=[], default=tmp_path).scan()[0].source == SOURCE


def test_a_cut_connection_is_taken_up_where_it_broke(server: HubServer, tmp_path: Path) -> None:
    server.cut_after = 3_000_000
    path = fetch_from(server, tmp_path)
    manifest.verify(path)
    starts = [start for name, start in server.ranges if name == "model.safetensors"]
    assert len(starts) == 2
    assert 0 < starts[1] <= 3_000_000


def test_a_cancelled_fetch_is_resumed_by_the_next(server: HubServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with pytest.raises(FetchCancelled):
        fetch_from(server, tmp_path, cancelled=lambda: bool(seen) and seen[-1][0] > 2_000_000, seen=seen)
    partial = tmp_path / "acme" / "tiny-Instruct.partial"
    kept = (partial / f"model.safetensors{CUT}").stat().st_size
    assert kept > 2_000_000
    assert ModelStore(read_only=[], writable=[], default=tmp_path).scan() == []
    fetch_from(server, tmp_path)
    assert ("model.safetensors", kept) in server.ranges
    assert not partial.exists()


def test_a_model_that_is_whole_already_is_left_as_it_is(server: HubServer, tmp_path: Path) -> None:
    path = fetch_from(server, tmp_path)
    before = len(server.ranges)
    card = card_from_directory(path, ID)
    assert fetch(SOURCE, card, tmp_path, lambda *_: None, lambda: False, True) == path
    assert len(server.ranges) == before
    (path / "model.safetensors").unlink()
    manifest.verify(fetch_from(server, tmp_path))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_repository_without_the_needed_files_is_refused(
    server: HubServer, repository: Path, tmp_path: Path, missing: str
) -> None:
    for file in repository.iterdir():
        if file.name != missing:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    server.models[ID] = tmp_path
    with pytest.raises(FetchError, match=r"it has no .*Choose a repository"):
        hub.describe(ID, endpoint=server.url)


@pytest.mark.parametrize("fault", ["corrupt", "short"])
def test_a_file_that_is_not_what_the_hub_states_is_refused(
    server: HubServer, tmp_path: Path, fault: str
) -> None:
    setattr(server, fault, "model.safetensors")
    with pytest.raises(FetchError, match=r"model.safetensors did not arrive") as caught:
        fetch_from(server, tmp_path)
    assert caught.value.retryable
    assert not (tmp_path / "acme" / "tiny-Instruct").exists()
    setattr(server, fault, "")
    manifest.verify(fetch_from(server, tmp_path))


@pytest.mark.parametrize(
    ("status", "error_code", "code", "advice", "retryable"),
    [
        (401, "GatedRepo", "model_gated", "Accept its terms at", False),
        (401, "RepoNotFound", "model_not_found", "Check the spelling", False),
        (404, "RepoNotFound", "model_not_found", "hf auth login", False),
        (404, "RevisionNotFound", "revision_not_found", "See http", False),
        (403, "", "not_authorised", "HF_TOKEN", False),
        (429, "", "hub_refused", "Try again later", True),
        (503, "", "hub_refused", "Try again later", True),
    ],
)
def test_refusals_of_the_hub_say_what_to_do(
    server: HubServer, status: int, error_code: str, code: str, advice: str, retryable: bool
) -> None:
    server.refuse = (status, error_code)
    with pytest.raises(FetchError) as caught:
        hub.describe(ID, endpoint=server.url)
    assert caught.value.cause.code == code
    assert advice in caught.value.cause.message
    assert caught.value.retryable is retryable


def test_no_network_is_said_so_and_may_be_retried() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        with pytest.raises(FetchError, match=r"can't be reached .* Check the network, the proxy") as caught:
            hub.describe(ID, endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert caught.value.retryable


def test_offline_the_hub_is_not_asked(server: HubServer, tmp_path: Path) -> None:
    card, _ = hub.describe(ID, endpoint=server.url)
    before = len(server.ranges)
    with pytest.raises(FetchError, match="offline mode is on"):
        fetch(SOURCE, card, tmp_path, lambda *_: None, lambda: False, True, endpoint=server.url)
    assert len(server.ranges) == before


def test_a_directory_source_is_used_where_it_is(tiny: Path, tmp_path: Path) -> None:
    card = card_from_directory(tiny, "mine")
    source = ModelSource(kind="directory", location=str(tiny))
    assert fetch(source, card, tmp_path, lambda *_: None, lambda: False, True) == tiny
    missing = ModelSource(kind="directory", location=str(tmp_path / "gone"))
    with pytest.raises(FetchError, match=r"gone has no config.json"):
        fetch(missing, card, tmp_path, lambda *_: None, lambda: False, True)


class TestResolve:
    def test_catalogue_store_path_and_hub(self, server: HubServer, tiny: Path, tmp_path: Path) -> None:
        store = ModelStore(read_only=[], writable=[], default=tmp_path)
        known = describe("SmolLM2-135M-Instruct", store=store, offline=True)
        assert (known.source.kind, known.path) == ("package", "")
        there = describe(str(tiny), store=store, offline=True)
        assert (there.source.kind, there.path) == ("directory", str(tiny.resolve()))
        remote = describe(ID, store=store, offline=False, hub_endpoint=server.url)
        assert (remote.source, remote.path) == (SOURCE, "")
        path = fetch_from(server, tmp_path)
        assert describe(ID, store=store, offline=True).path == str(path)

    def test_an_unknown_id_lists_near_matches(self, server: HubServer, tmp_path: Path) -> None:
        store = ModelStore(read_only=[], writable=[], default=tmp_path)
        with pytest.raises(Unknown, match=r"Did you mean SmolLM2-135M-Instruct\?"):
            describe("SmolLM-135M", store=store, offline=False, hub_endpoint=server.url)
        with pytest.raises(Unknown, match="offline mode is on"):
            describe("acme/nothing", store=store, offline=True)

    @pytest.mark.parametrize("bad", ["../etc", "a/../b", "a/b/c", "", ".hidden", "a b", "o/..", "x.partial"])
    def test_what_is_no_id_is_refused(self, tmp_path: Path, bad: str) -> None:
        store = ModelStore(read_only=[], writable=[], default=tmp_path)
        with pytest.raises(Unknown, match="is no model id"):
            describe(bad, store=store, offline=True)

    @pytest.mark.parametrize("bad", ["~nobody-here/x", "/a\0b", "/dev/null"])
    def test_what_is_no_readable_directory_is_refused(self, tmp_path: Path, bad: str) -> None:
        store = ModelStore(read_only=[], writable=[], default=tmp_path)
        with pytest.raises(StoreError, match=r"can't be read|has no config\.json"):
            describe(bad, store=store, offline=True)

    @pytest.mark.parametrize("bad", ["a" * 201, "acme/" + "a" * 250])
    def test_an_id_that_no_directory_can_be_called_by_is_refused(self, tmp_path: Path, bad: str) -> None:
        store = ModelStore(read_only=[], writable=[], default=tmp_path)
        with pytest.raises(Unknown, match="is no model id"):
            describe(bad, store=store, offline=True)

    def test_a_known_model_with_broken_files_is_not_unknown(self, tiny: Path, tmp_path: Path) -> None:
        store = ModelStore(read_only=[], writable=[], default=tmp_path)
        stored = store.import_directory(tiny, "mine")
        (stored.path / "model.safetensors").unlink()
        with pytest.raises(StoreError, match="fetch the model again"):
            describe("mine", store=store, offline=True)
