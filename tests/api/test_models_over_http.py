"""Models through HTTP: added by path, listed with where they are, deleted."""

from __future__ import annotations

from pathlib import Path

from support.node import MODEL, LocalNode
from support.tiny import tiny_model_dir


def test_a_model_of_this_machine_comes_and_goes(node: LocalNode, tmp_path: Path) -> None:
    path = tiny_model_dir(tmp_path / "brought", seed=11)
    added = node.call("POST", "/models", {"path": str(path), "model_id": "acme/brought"})
    assert added.status == 201, added.body
    assert added.json["status"] == "stored"
    assert added.json["card"]["n_layers"] == 2
    listed = {model["model_id"]: model for model in node.call("GET", "/models").json["models"]}
    assert listed["acme/brought"]["paths"]
    assert listed[MODEL]["status"] == "ready"
    assert listed[MODEL]["instances"]
    again = node.call("POST", "/models", {"path": str(path), "model_id": "acme/brought"})
    assert (again.status, again.json["error"]["code"]) == (409, "model_exists")
    assert node.call("DELETE", "/models/acme%2Fbrought").status == 200
    assert not list(node.node.settings.default_models_path.glob("acme/brought"))
    assert path.exists()


def test_a_directory_keeps_the_dots_of_its_name(node: LocalNode, tmp_path: Path) -> None:
    added = node.call("POST", "/models", {"path": str(tiny_model_dir(tmp_path / "Tiny2.5-0.5B"))})
    assert (added.status, added.json["model_id"]) == (201, "Tiny2.5-0.5B")
    assert node.call("DELETE", "/models/Tiny2.5-0.5B").status == 200


def test_models_that_can_not_be_added(node: LocalNode, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    whole = tiny_model_dir(tmp_path / "whole")
    for body, status in (
        ({}, 400),
        ({"path": "relative/path"}, 400),
        ({"path": str(tmp_path / "missing"), "model_id": "a/b"}, 422),
        ({"path": str(empty), "model_id": "a/b"}, 422),
        ({"path": str(tmp_path / ("p" * 300)), "model_id": "a/b"}, 422),
        ({"path": str(whole), "model_id": "../up"}, 400),
        ({"model_id": "nobody/knows-this"}, 404),
        ({"model_id": 5}, 400),
    ):
        answer = node.call("POST", "/models", body)
        assert answer.status == status, (body, answer.body)
        assert answer.json["error"]["message"].endswith((".", "?")), answer.body
