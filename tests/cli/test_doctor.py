"""`cuebook doctor` finds what is wrong, says what to do, and disturbs nothing."""

from __future__ import annotations

import os
import socket
import sqlite3
from datetime import timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.authority import Authority
from support.command import Cuebook
from support.npu_standin.without_cann import install_torch_npu
from support.served import ServedNode, free_port
from support.tiny import tiny_model_dir

from events.backup import backup
from events.drivers import has_wal_reset_bug


def findings(home: Path, port: int, subject: str, **settings: object) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what was found on a subject."""
    done = Cuebook(home, port)("doctor", "--json", **settings)
    return done.code, [finding for finding in done.json if finding["subject"] == subject]


def test_a_sound_machine_passes(tmp_path: Path) -> None:
    done = Cuebook(tmp_path, free_port())("doctor")
    assert done.code == 0, done.out
    for subject in ("system", "home", "sqlite", "log", "models", "port", "engine"):
        assert f" {subject} " in done.out
    assert "mlx" in done.out


def test_a_running_node_is_found_on_its_port_and_left_alone(served: ServedNode) -> None:
    before = served.get("/state")["seq"]
    code, port = findings(served.home, served.port, "port")
    assert (code, port[0]["level"]) == (0, "ok")
    assert "a Cuebook node answers" in port[0]["text"]
    assert str(served.pid) in port[0]["text"]
    _, log = findings(served.home, served.port, "log")
    assert {each["level"] for each in log} == {"ok"}
    assert served.get("/state")["seq"] == before


def test_a_port_of_another_program_fails(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, (port,) = findings(tmp_path, taken.getsockname()[1], "port")
    assert (code, port["level"]) == (1, "fail")
    assert str(os.getpid()) in port["text"]
    assert "--port" in port["advice"]


def test_a_home_is_not_made_by_looking(tmp_path: Path) -> None:
    code, found = findings(tmp_path / "new" / "home", free_port(), "home")
    assert (code, found[0]["level"], "will be made" in found[0]["text"]) == (0, "ok", True)
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_cannot_be_made_fails() -> None:
    code, (home,) = findings(Path("/proc/cuebook"), free_port(), "home")
    assert (code, home["level"]) == (1, "fail")
    assert "CUEBOOK_HOME" in home["advice"]


def test_a_damaged_log_fails_with_the_place(served: ServedNode, tmp_path: Path) -> None:
    backup(served.log, tmp_path / "log.db")
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.executescript("DROP TRIGGER events_refuse_update; UPDATE events SET at = at + 1 WHERE seq = 4")
    connection.close()
    code, log = findings(tmp_path, free_port(), "log")
    assert (code, log[0]["level"]) == (1, "fail")
    assert "events 4" in log[0]["text"]
    assert "backup" in log[0]["advice"]


def test_models_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    tiny_model_dir(tmp_path / "models" / "good")
    tiny_model_dir(tmp_path / "models" / "bad")
    (tmp_path / "models" / "bad" / "config.json").write_text("{}")
    code, models = findings(tmp_path, free_port(), "models", models_read_only_dirs=f"{tmp_path}/absent")
    texts = {finding["level"]: finding["text"] for finding in models}
    assert code == 1
    assert "absent" in texts["fail"]
    assert "bad" in texts["warn"]
    assert any("stored here: good" in finding["text"] for finding in models)


def test_the_sqlite_in_use_is_judged(tmp_path: Path) -> None:
    _, found = findings(tmp_path, free_port(), "sqlite")
    (own,) = [finding for finding in found if finding["text"].startswith("sqlite3 ")]
    assert (own["level"] == "warn") == has_wal_reset_bug(sqlite3.sqlite_version)
    _, found = findings(tmp_path, free_port(), "sqlite", log_driver="apsw")
    assert {finding["level"] for finding in found} == {"ok"}
    assert any(
        finding["text"].startswith("apsw ") and "keeps the log" in finding["text"] for finding in found
    )


def test_torch_npu_without_cann_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    packages = install_torch_npu(tmp_path, version("torch").partition("+")[0])
    monkeypatch.setenv("PYTHONPATH", str(packages))
    code, found = findings(tmp_path, free_port(), "engine", engines="torch")
    assert code == 0
    (about_npus,) = [finding for finding in found if "NPU" in finding["text"]]
    assert about_npus["level"] == "warn"
    assert "torch-npu is installed, but CANN" in about_npus["text"]
    assert "set_env.sh" in about_npus["text"]
    assert any(finding["text"].startswith("torch: ") and "CPU" in finding["text"] for finding in found)


def cluster_line(home: Path, **settings: object) -> tuple[int, dict[str, Any]]:
    code, (found,) = findings(home, free_port(), "cluster", cluster="stage", **settings)
    return code, found


def test_what_a_node_proves_itself_with_is_tried(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    for until, level in ((timedelta(days=400), "ok"), (timedelta(days=20), "warn")):
        files = authority.sign("desk", until)
        given = {"cluster_authority": files.authority, "cluster_certificate": files.certificate}
        code, found = cluster_line(tmp_path / "home", **given, cluster_key=files.key)
        assert (code, found["level"]) == (0, level)
        assert "by the certificate of desk, good until 20" in found["text"]
        assert bool(found["advice"]) == (level == "warn")
    code, found = cluster_line(tmp_path / "home", **given)
    assert (code, found["level"], "set cluster_key as well" in found["text"]) == (1, "fail", True)
    code, found = cluster_line(tmp_path / "home", cluster_secret="short")
    assert (code, found["level"], "has 5 characters" in found["text"]) == (1, "fail", True)
    assert cluster_line(tmp_path / "home", cluster_secret="a secret of good length")[0] == 0
    assert not (tmp_path / "home").exists()
