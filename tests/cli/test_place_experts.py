"""`cuebook place` with what is for experts: settings from the command line, refusals from the node."""

from __future__ import annotations

from argparse import ArgumentTypeError

import msgspec
import pytest
from support.command import Cuebook

from api.cli.place import balancer
from events.experts import EplbSettings


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", EplbSettings()),
        ("redundant_experts=2", EplbSettings(redundant_experts=2)),
        (
            "policy=greedy, phase=decode,horizon_s=1e3,use_async=true",
            EplbSettings(policy="greedy", phase="decode", horizon_s=1000.0, use_async=True),
        ),
    ],
)
def test_settings_of_the_balancer_are_read(text: str, settings: EplbSettings) -> None:
    assert msgspec.convert(balancer(text), EplbSettings) == settings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "redundant=2",
            "'redundant=2' is not one of its settings as NAME=VALUE; known are redundant_experts",
        ),
        ("window", "'window' is not one of its settings"),
        ("window=many", "Expected `int`, got `str` - at `window`"),
        ("policy=swift", "Invalid enum value 'swift' - at `policy`"),
        ("window=1,,", "'' is not one of its settings"),
    ],
)
def test_what_is_no_setting_is_said(text: str, sentence: str) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        balancer(text)
    assert sentence in str(error.value)


def test_the_node_refuses_with_its_sentence(cuebook: Cuebook) -> None:
    dense = cuebook("place", "tiny", "--strategy", "expert", "--ranks", "2", "--eplb", "redundant_experts=2")
    assert (dense.code, dense.out) == (1, "")
    assert "tiny has no layer with experts" in dense.err
    idle = cuebook("place", "tiny", "--eplb")
    assert idle.code == 1
    assert "eplb is for experts that are spread over ranks, and the strategy is auto" in idle.err


def test_a_preview_takes_them_too(cuebook: Cuebook) -> None:
    words = ["--strategy", "expert", "--expert-format", "int8", "--expert-dispatch", "all_to_all", "--eplb"]
    asked = cuebook("place", "tiny", *words, "--preview", "--json").json["previews"][0]
    assert asked["settings"]["eplb"] == msgspec.to_builtins(EplbSettings())
    assert (asked["settings"]["expert_format"], asked["settings"]["expert_dispatch"]) == (
        "int8",
        "all_to_all",
    )
    assert asked["cause"]["detail"] == {"rule": "no_moe_layer"}
