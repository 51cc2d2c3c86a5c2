"""`cuebook replay` on the log of a node that is running, and on copies of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from support.command import Cuebook
from support.served import ServedNode

from events.backup import backup


@pytest.fixture(scope="module")
def instance_id(served: ServedNode) -> str:
    return next(i["instance_id"] for i in served.get("/instance")["instances"] if i["model_id"] == "tiny")


@pytest.fixture
def copy(served: ServedNode, tmp_path: Path) -> Path:
    """A copy of the log, taken while the node writes it."""
    backup(served.log, tmp_path / "copy.db")
    return tmp_path / "copy.db"


def test_state_at_the_end_is_the_node_s_own(cuebook: Cuebook, served: ServedNode) -> None:
    shown, own = cuebook("replay", "state", "--json").json, served.get("/state")
    assert shown == own
    assert "stage" in cuebook("replay", "state").out


def test_state_at_a_number_and_at_a_time(cuebook: Cuebook, served: ServedNode, instance_id: str) -> None:
    (placed,) = [e for e in served.events("InstancePlaced") if e["event"]["instance_id"] == instance_id]
    at_seq = cuebook("replay", "state", "--at", str(placed["seq"]), "--json").json
    assert at_seq["instances"][instance_id]["status"] == "placed"
    nothing = cuebook("replay", "state", "--at", "2001-01-01T00:00:00Z", "--json").json
    assert (nothing["seq"], nothing["instances"]) == (0, {})
    ahead = cuebook("replay", "state", "--at", "2901-01-01T00:00:00Z", "--json").json
    assert ahead == cuebook("replay", "state", "--json").json


def test_positions_that_are_none_are_refused(cuebook: Cuebook) -> None:
    beyond = cuebook("replay", "state", "--at", "999999")
    assert beyond.code == 1
    assert "the log ends with event" in beyond.err
    garbled = cuebook("replay", "state", "--at", "yesterday")
    assert garbled.code == 1
    assert "'yesterday' is not" in garbled.err


def test_diff_names_what_came_and_what_changed(cuebook: Cuebook, instance_id: str) -> None:
    shown = cuebook("replay", "diff", "0")
    assert f"+ instance {instance_id}" in shown.out
    changes = cuebook("replay", "diff", "0", "head", "--json").json["changes"]
    assert {"instance", "node", "model", "runner"} <= {change["entity"] for change in changes}
    assert "nothing changed" in cuebook("replay", "diff", "5", "5").out


def test_why_tells_the_story_of_an_instance(cuebook: Cuebook, instance_id: str) -> None:
    shown = cuebook("replay", "why", instance_id)
    assert shown.out.startswith(f"Instance {instance_id}:")
    for words in ("someone asked to run tiny", "was chosen", "began to load", "is ready"):
        assert words in shown.out
    story = cuebook("replay", "why", instance_id, "--json").json
    assert story["kind"] == "instance"
    unknown = cuebook("replay", "why", "instance-of-nothing")
    assert unknown.code == 1
    assert "The log has nothing on 'instance-of-nothing'" in unknown.err
    for number in ("9" * 30, "#" + "9" * 30):
        assert f"The log has nothing on {number!r}" in cuebook("replay", "why", number).err


def test_timeline_is_filtered(cuebook: Cuebook, instance_id: str) -> None:
    whole = cuebook("replay", "timeline", "--json").json
    assert [line["seq"] for line in whole] == list(range(1, len(whole) + 1))
    about = cuebook("replay", "timeline", "--about", instance_id, "--type", "InstanceReady", "--json").json
    assert [line["type"] for line in about] == ["InstanceReady"]
    part = cuebook("replay", "timeline", "--after", "2", "--upto", "4", "--json").json
    assert [line["seq"] for line in part] == [3, 4]
    assert len(cuebook("replay", "timeline", "--upto", "3").out.splitlines()) == 3


def test_verify_finds_no_difference(cuebook: Cuebook) -> None:
    shown = cuebook("replay", "verify")
    assert (shown.code, shown.err) == (0, "")
    assert "The hash chain holds." in shown.out
    assert "no differences" in shown.out
    assert cuebook("replay", "verify", "--json").json["ok"] is True


def test_verify_finds_a_changed_row(cuebook: Cuebook, copy: Path) -> None:
    connection = sqlite3.connect(copy)
    connection.executescript(
        "DROP TRIGGER events_refuse_update;"
        "UPDATE events SET body = replace(body, 'tiny', 'tidy') WHERE type = 'InstanceRequested'"
    )
    connection.close()
    shown = cuebook("replay", "verify", "--log", str(copy))
    assert shown.code == 1
    assert "The hash chain breaks at events" in shown.out
    assert "+ " in shown.out
    assert "because someone asked to run tiny" in shown.out


def test_what_if_compares_policies(cuebook: Cuebook) -> None:
    shown = cuebook("replay", "what-if", "--policy", "best-fit")
    assert shown.code == 0
    assert "decisions would change" in shown.out
    report = cuebook("replay", "what-if", "--policy", "most-room", "--json").json
    assert report["decisions"] > 0
    assert report["changed"] == []


def test_rebuild_equals_what_grew_live(cuebook: Cuebook, tmp_path: Path) -> None:
    refused = cuebook("replay", "rebuild")
    assert refused.code == 1
    assert "is being written" in refused.err
    compared = cuebook("replay", "rebuild", "--compare")
    assert compared.code == 0, compared.out
    elsewhere = tmp_path / "tables.db"
    made = cuebook("replay", "rebuild", "--to", str(elsewhere), "--json").json
    assert made["path"] == str(elsewhere)
    connection = sqlite3.connect(elsewhere)
    connection.execute("PRAGMA recursive_triggers = ON")
    connection.execute("UPDATE instances SET model_id = 'SmolLM2-135M-Instruct'")
    connection.commit()
    connection.close()
    differs = cuebook("replay", "rebuild", "--compare", "--to", str(elsewhere))
    assert differs.code == 1
    assert "instances:" in differs.out


def test_a_copy_is_as_good_as_the_log(cuebook: Cuebook, copy: Path, tmp_path: Path) -> None:
    alone = Cuebook(tmp_path / "no-home")
    assert alone("replay", "verify", "--log", str(copy)).code == 0
    assert alone("replay", "rebuild", "--log", str(copy)).code == 0
    assert (tmp_path / "projections.db").exists()


def test_a_foreign_file_is_refused(cuebook: Cuebook, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    refused = cuebook("replay", "timeline", "--log", str(foreign))
    assert refused.code == 1
    assert "not a Cuebook log" in refused.err
    text = tmp_path / "text.db"
    text.write_text("no database " * 400)
    garbled = cuebook("replay", "timeline", "--log", str(text))
    assert garbled.code == 1
    assert str(text) in garbled.err
