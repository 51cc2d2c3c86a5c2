"""`cuebook demo`: the real model, from the package index, answers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.command import Cuebook
from support.served import free_port

from api.cli import demo
from api.cli.main import main


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_demo_answers_twice_and_places_once(tmp_path: Path) -> None:
    cuebook = Cuebook(tmp_path, free_port())
    first = cuebook("demo", "--once", timeout=600)
    assert first.code == 0, first.err
    assert "The sea is a vast and mysterious realm" in first.out
    again = cuebook("demo", "--once", timeout=600)
    assert "The sea is a vast and mysterious realm" in again.out
    timeline = cuebook("replay", "timeline", "--json").json
    assert sum(line["type"] == "InstanceRequested" for line in timeline) == 1
    assert sum(line["type"] == "DownloadStarted" for line in timeline) == 1
    assert sum(line["type"] == "TaskFinished" for line in timeline) == 2
    assert cuebook("replay", "verify").code == 0
    assert cuebook("replay", "rebuild", "--compare").code == 0


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = Cuebook(tmp_path, taken.getsockname()[1])("demo", "--once")
    assert refused.code == 1
    assert "can't be used" in refused.err
    assert list(tmp_path.iterdir()) == []


def test_without_mlx_the_sentence_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    assert main(["demo", "--home", str(tmp_path)]) == 1
    assert "pip install 'cuebook[demo]'" in capsys.readouterr().err
