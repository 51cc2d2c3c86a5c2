import errno
import shutil
from pathlib import Path

import pytest
from support.tiny_gguf import write_gguf

from engines import manifest, store
from engines.model_errors import CardError, StoreError
from engines.store import ModelStore


def put(tiny: Path, *places: Path) -> None:
    for place in places:
        shutil.copytree(tiny, place)


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path, Path]:
    names = ("read-only", "writable", "default")
    for name in names:
        (tmp_path / name).mkdir()
    return tmp_path / names[0], tmp_path / names[1], tmp_path / names[2]


@pytest.fixture
def models(roots: tuple[Path, Path, Path]) -> ModelStore:
    return ModelStore(read_only=[roots[0]], writable=[roots[1]], default=roots[2])


def test_read_only_directories_come_first_then_writable_then_the_default(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    put(
        tiny,
        *(root / "everywhere" for root in roots),
        roots[1] / "later",
        roots[2] / "later",
        roots[2] / "last",
    )
    found = {model.model_id: model.path for model in models.scan()}
    assert found == {
        "everywhere": roots[0] / "everywhere",
        "later": roots[1] / "later",
        "last": roots[2] / "last",
    }
    for model_id, path in found.items():
        assert (stored := models.find(model_id)) is not None
        assert stored.path == path
    assert models.find("nowhere") is None


def test_organisations_may_be_directories_or_prefixes(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    put(tiny, roots[0] / "acme" / "one", roots[2] / "acme--two")
    assert [model.model_id for model in models.scan()] == ["acme/one", "acme/two"]
    for spelling in ("acme/one", "acme--one", "acme/two", "acme--two"):
        assert models.find(spelling) is not None


def test_what_is_unusable_is_reported_and_harms_nothing(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    put(tiny, *(roots[2] / name for name in ("good", "no-weights", "no-config", "coming.partial", ".hidden")))
    (roots[2] / "no-weights" / "model.safetensors").unlink()
    (roots[2] / "no-config" / "config.json").unlink()
    (roots[2] / "notes").mkdir()
    assert [model.model_id for model in models.scan()] == ["good"]
    assert {problem.path.name for problem in models.problems} == {"no-weights", "no-config"}
    with pytest.raises(StoreError, match=r"no \.safetensors files"):
        models.find("no-weights")


def test_a_model_that_shrank_since_it_was_stored_is_a_problem(models: ModelStore, tiny: Path) -> None:
    path = models.import_directory(tiny, "acme/shrinking").path
    (path / "tokenizer.json").write_text("{}")
    assert models.scan() == []
    assert "tokenizer.json" in models.problems[0].cause.message


def test_verify_finds_one_changed_byte(models: ModelStore, tiny: Path) -> None:
    path = models.import_directory(tiny, "flipped").path
    manifest.verify(path)
    weights = bytearray((path / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (path / "model.safetensors").write_bytes(weights)
    assert len(models.scan()) == 1
    with pytest.raises(StoreError, match=r"model.safetensors"):
        manifest.verify(path)


def test_import_copies_into_the_first_writable_directory(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    stored = models.import_directory(tiny, "acme/copied")
    assert stored.path == roots[1] / "acme" / "copied"
    assert stored.source.location == str(tiny)
    assert models.find("acme/copied") == stored
    with pytest.raises(StoreError, match="in the store already"):
        models.import_directory(tiny, "acme/copied")


def test_a_failed_import_leaves_nothing(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    broken = roots[1].parent / "broken"
    put(tiny, broken)
    (broken / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CardError):
        models.import_directory(broken, "broken")
    (broken / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(StoreError, match="not a whole GGUF file"):
        models.import_gguf(broken / "model.gguf", "broken")
    assert list(roots[1].iterdir()) == []


def test_an_import_that_fails_half_way_leaves_nothing(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(partial: Path, *_: object) -> None:
        assert (partial / "model.safetensors").exists()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(manifest, "write", full)
    with pytest.raises(OSError, match="No space left"):
        models.import_directory(tiny, "broken")
    assert list(roots[1].iterdir()) == []


def test_full_disks_are_passed_over_and_the_error_has_the_numbers(
    models: ModelStore, roots: tuple[Path, Path, Path]
) -> None:
    assert models.place_for(1000, "new") == roots[1]
    with pytest.raises(StoreError, match=r"1000000\.0 GB are needed .*writable has \d+\.\d GB.*default has"):
        models.place_for(10**15, "new")


def test_the_log_s_share_of_the_disk_stays_free(models: ModelStore, roots: tuple[Path, Path, Path]) -> None:
    free = shutil.disk_usage(roots[1]).free
    with pytest.raises(StoreError, match="must stay free"):
        models.place_for(free - store.RESERVE_BYTES // 2, "new")


def test_a_part_of_a_model_needs_no_room_and_is_gone_on_with(
    models: ModelStore, roots: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = store.begin(roots[2], "acme/half", resume=True)
    (partial / "model.safetensors.cut").write_bytes(bytes(600))
    assert models.place_for(1000, "acme/half") == roots[2]
    usage = shutil.disk_usage(roots[2])._replace(free=store.RESERVE_BYTES + 500)
    monkeypatch.setattr(shutil, "disk_usage", lambda *_: usage)
    assert models.place_for(1000, "acme/half") == roots[2]
    with pytest.raises(StoreError, match="No models directory has room"):
        models.place_for(1000, "acme/other")


def test_a_gguf_file_needs_the_room_of_its_weights_in_float32(
    models: ModelStore, roots: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(roots[1].parent / "tiny.gguf")
    written = models.import_gguf(path, "first").card.weight_bytes
    usage = shutil.disk_usage(roots[1])
    for free, fits in ((written - 1, False), (written, True)):
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _, free=free: usage._replace(free=free + store.RESERVE_BYTES)
        )
        if fits:
            assert models.import_gguf(path, "second").card.weight_bytes == written
        else:
            with pytest.raises(StoreError, match="No models directory has room"):
                models.import_gguf(path, "second")


def test_a_whole_copy_serves_where_one_before_it_is_broken(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    put(tiny, roots[0] / "twice", roots[2] / "twice")
    (roots[0] / "twice" / "model.safetensors").unlink()
    assert [model.path for model in models.scan()] == [roots[2] / "twice"]
    assert (found := models.find("twice")) is not None
    assert found.path == roots[2] / "twice"


def test_no_model_replaces_an_organisation_or_lies_in_another_model(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    first = models.import_directory(tiny, "acme/one")
    with pytest.raises(StoreError, match=r"acme can't be stored: .*acme holds other models"):
        models.import_directory(tiny, "acme")
    models.import_directory(tiny, "alone")
    with pytest.raises(StoreError, match=r"alone/two can't be stored: .*alone is a model itself"):
        models.import_directory(tiny, "alone/two")
    assert models.find("acme/one") == first
    assert [model.model_id for model in models.scan()] == ["acme/one", "alone"]


def test_remove_never_touches_read_only_directories(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    put(tiny, roots[0] / "kept")
    stored = models.import_directory(tiny, "acme/gone")
    models.remove("acme--gone")
    assert not stored.path.exists()
    with pytest.raises(StoreError, match=r"kept is in a read-only directory"):
        models.remove("kept")
    with pytest.raises(StoreError, match="not in the store"):
        models.remove("acme/gone")
    assert (roots[0] / "kept" / "config.json").is_file()


def test_remove_takes_what_an_abandoned_download_has_left(
    models: ModelStore, roots: tuple[Path, Path, Path]
) -> None:
    for root in roots:
        (store.begin(root, "acme/half", resume=True) / "model.safetensors.part").write_bytes(b"begun")
    models.remove("acme/half")
    assert [(root / "acme" / "half.partial").exists() for root in roots] == [True, False, False]
    with pytest.raises(StoreError, match="not in the store"):
        models.remove("acme/half")


def test_an_index_that_points_outside_is_refused(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    put(tiny, roots[0] / "sly")
    index = roots[0] / "sly" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../../secret.safetensors"}}')
    with pytest.raises(StoreError, match="names a file outside its directory"):
        models.find("sly")


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "model.safetensors.index.json", manifest.NAME]
)
def test_json_that_is_nested_without_end_harms_nothing(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path, name: str
) -> None:
    put(tiny, roots[0] / "good", roots[0] / "nested")
    content = b'{"a":' + b"[" * 200_000
    header = len(content).to_bytes(8, "little") if name == "model.safetensors" else b""
    (roots[0] / "nested" / name).write_bytes(header + content)
    assert [model.model_id for model in models.scan()] == ["good"]
    assert "fetch it again" in (found := models.problems[0].cause.message) or "is n" in found


def test_a_directory_that_can_t_be_read_is_a_problem(
    models: ModelStore, roots: tuple[Path, Path, Path], tiny: Path
) -> None:
    put(tiny, roots[0] / "good", roots[0] / "looped")
    (roots[0] / "looped" / "model.safetensors").unlink()
    (roots[0] / "looped" / "model.safetensors").mkdir()
    assert [model.model_id for model in models.scan()] == ["good"]
    assert "can't be read" in models.problems[0].cause.message
