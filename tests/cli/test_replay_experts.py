"""`cuebook replay` on experts: why an epoch, what another policy would have done, and the heat map."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from support.command import Cuebook, Outcome
from support.expert_log import expert_log

SVG = "{http://www.w3.org/2000/svg}"


class Asked:
    """Questions to one log."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log, self.instance_id = expert_log(home / "log.db")
        self._cuebook = Cuebook(home)

    def __call__(self, *words: str) -> Outcome:
        return self._cuebook("replay", *words, "--log", str(self.log))

    def why(self, epoch: int) -> str:
        told = self("why", f"{self.instance_id}@{epoch}")
        assert told.code == 0, told.err
        return told.out


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(tmp_path_factory.mktemp("experts"))


def in_order(text: str, *parts: str) -> None:
    """Every part is there, each after the one before."""
    place = 0
    for part in parts:
        found = text.find(part, place)
        assert found >= 0, f"{part!r} is not in {text[place:]!r}"
        place = found + len(part)


# Why


def test_the_first_epoch_tells_where_experts_were_put_and_why(asked: Asked) -> None:
    in_order(
        asked.why(1),
        "The 8 experts of each of 3 layers",
        "epoch 1: nothing is known of their load yet",
        "because someone asked to run Mixture-8x160M, with strategy expert",
        "rank 0: experts 0, 1, 2, 4, 6",
        "rank 1: experts 0, 1, 3, 5, 7",
        "and 2 layers like this one",
    )


def test_an_epoch_tells_its_window_verdict_moves_and_commits(asked: Asked) -> None:
    story = asked.why(3)
    in_order(
        story,
        "closed load window 3",
        "in epoch 2",
        "times the mean; hottest experts",
        "by the policy movement was adopted, balance",
        "saves",
        "the busiest rank receives",
        "for epoch 3",
        "layer 0: expert",
        *(
            step
            for layer in range(3)
            for step in (
                f"new slots of layer {layer} beside the live ones",
                f"The new map of layer {layer}",
                "rank 1: experts",
                f"compute layer {layer} by its new map",
            )
        ),
        "Epoch 3 of the experts",
        "is complete on all ranks",
        "was left",
        "the window saw 8 tokens, and a decision needs 256",
    )
    assert "window 2" not in story


def test_a_migration_that_came_to_nothing_belongs_to_the_story(asked: Asked) -> None:
    in_order(
        asked.why(2),
        "closed load window 1",
        "for epoch 2",
        "ended early, before layer 0 was committed: A rank could not stage the layer",
        "closed load window 2",
        "for epoch 2",
        "Epoch 2 of the experts",
    )


def test_a_story_for_programs_has_its_kind_and_seqs(asked: Asked) -> None:
    story: dict[str, Any] = asked("why", f"{asked.instance_id}@2", "--json").json
    assert (story["kind"], story["id"]) == ("epoch", f"{asked.instance_id}@2")
    seqs = [link["seq"] for link in story["links"]]
    assert seqs == sorted(seqs)
    assert [link["failure"] for link in story["links"]].count(True) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("{}@9", "has no epoch 9; it has 1, 2, 3"),
        ("instance-none@1", "The log has no epochs of experts of 'instance-none'"),
        ("{}@last", "The log has nothing on"),
    ],
)
def test_an_epoch_that_is_none_is_said_with_those_that_are(asked: Asked, words: str, sentence: str) -> None:
    refused = asked("why", words.format(asked.instance_id))
    assert (refused.code, refused.out) == (1, "")
    assert sentence in refused.err


# What if


def test_what_was_stands_beside_what_would_have_been(asked: Asked) -> None:
    compared = asked("what-if", "--policy", "greedy", "--json").json
    (comparison,) = compared
    assert (comparison["instance_id"], comparison["policy"]) == (asked.instance_id, "greedy")
    rows = comparison["rows"]
    assert [row["window"] for row in rows] == [1, 2, 3, 4]
    assert [row["was"]["adopted"] for row in rows] == [True, True, True, False]
    assert rows[0]["was"]["balance"] == pytest.approx(rows[0]["would_be"]["balance"])
    for row in rows:
        for side in ("was", "would_be"):
            assert (row[side]["moves"] > 0) == row[side]["adopted"] == (row[side]["bytes_total"] > 0)
            assert 0 < row[side]["balance"] <= 1


def test_the_policy_in_force_moves_what_it_moved_but_what_was_lost(asked: Asked) -> None:
    """The lost migration of window 1 would have been made, so that window 2 moves nothing more."""
    rows = asked("what-if", "--policy", "movement", "--json").json[0]["rows"]
    assert rows[0]["would_be"]["moves"] == rows[0]["was"]["moves"]
    assert rows[1]["would_be"]["moves"] == 0
    assert rows[2]["would_be"]["moves"] == rows[2]["was"]["moves"]
    assert rows[2]["would_be"]["balance"] == pytest.approx(rows[2]["was"]["balance"])


def test_static_moves_nothing_and_the_table_says_so(asked: Asked) -> None:
    shown = asked("what-if", "--policy", "static").out
    assert f"{asked.instance_id}, 2 ranks, with the policy static:" in shown
    assert re.search(r"with static for 0 experts moved \(0 MiB\)\.", shown)
    assert re.search(r"Mean balance 0\.\d+ as it was for \d+ experts moved \(\d+ MiB\)", shown)


def test_policies_of_devices_are_under_the_same_option(asked: Asked) -> None:
    shown = asked("what-if", "--policy", "best-fit")
    assert "With the placement policy best-fit:" in shown.out
    assert asked("what-if", "--policy", "swift").code == 2


def test_every_decision_is_made_again(asked: Asked) -> None:
    verified = asked("verify")
    assert verified.code == 0, verified.out
    assert "no differences" in verified.out


# The heat map


def drawing(asked: Asked, *words: str) -> ET.Element:
    target = asked.home / "heat.svg"
    done = asked("heat-map", asked.instance_id, "--to", str(target), *words)
    assert done.code == 0, done.err
    return ET.fromstring(target.read_text())


def texts(root: ET.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def cells(root: ET.Element) -> list[str]:
    return [each.text or "" for each in root.findall(f"{SVG}rect/{SVG}title")]


def test_the_map_has_a_cell_for_each_layer_and_rank_before_and_after(asked: Asked) -> None:
    root = drawing(asked, "--epoch", "2")
    shown = texts(root)
    assert "Before: epoch 1, window 2" in shown
    assert "After: epoch 2, window 3" in shown
    assert any(re.fullmatch(r"Expert load around epoch 2: balance 0\.\d+ → 0\.\d+", text) for text in shown)
    assert len(cells(root)) == 2 * 3 * 2
    numbers = [float(cell.rpartition(" ")[2]) for cell in cells(root)]
    assert sum(numbers) == pytest.approx(len(numbers), abs=0.1), "each layer's loads are by their mean"


def test_the_map_is_of_the_last_epoch_unless_told(asked: Asked) -> None:
    assert "After: epoch 3, window 4" in texts(drawing(asked))


def test_an_epoch_with_one_side_only_has_one_panel(asked: Asked) -> None:
    first = drawing(asked, "--epoch", "1")
    assert len(cells(first)) == 3 * 2
    assert "After: epoch 1, window 1" in texts(first)


def test_the_map_for_programs_has_the_rows(asked: Asked) -> None:
    heat = asked("heat-map", asked.instance_id, "--epoch", "2", "--json").json
    assert (heat["before"]["epoch"], heat["after"]["epoch"]) == (1, 2)
    assert len(heat["after"]["ranks"]) == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("instance-none",), "The log has no load windows of 'instance-none'"),
        (("{}", "--epoch", "0"), "has no load window up to epoch 0; it has some of 1, 2, 3"),
        (("{}", "--to", "/nowhere/heat.svg"), "/nowhere/heat.svg can't be written"),
    ],
)
def test_a_map_that_can_not_be_drawn_says_why(asked: Asked, words: tuple[str, ...], sentence: str) -> None:
    refused = asked("heat-map", *(word.format(asked.instance_id) for word in words))
    assert (refused.code, refused.out) == (1, "")
    assert sentence in refused.err
