"""Real journals, masters and routers on links in memory: one log, whoever leads, whatever breaks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from support.cards import SMALL
from support.transports import eventually
from support.voices import ANSWER_S, Voice, agreed

from actors.net.memory import MemoryHub
from actors.refusal import Rejected
from events import catalogue as ev
from events import commands as cmd
from events.check import check
from events.record import Committed
from events.values import ModelSource

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub(delay_s=0.0005, dead_s=0.3)


@pytest.fixture
def voices(hub: MemoryHub, tmp_path: Path) -> Iterator[dict[str, Voice]]:
    """Three nodes that agree on who leads."""
    voices = {name: Voice(name, hub, tmp_path / name) for name in ("ann", "ben", "cal")}
    for voice in voices.values():
        voice.start()
    agreed(*voices.values())
    yield voices
    for voice in voices.values():
        voice.stop()
    assert all(check(voice.paths.log).ok for voice in voices.values())


def describe(name: str) -> cmd.ReportModel:
    """A report that makes an event, whoever decides it."""
    return cmd.ReportModel(
        command_id=f"describe-{name}",
        origin="ann",
        card=msgspec.structs.replace(SMALL, model_id=name),
        source=ModelSource(kind="hub", location=f"org/{name}"),
        path="",
        size_bytes=0,
    )


def described(voice: Voice) -> list[str]:
    """The models in the order in which the log has them."""
    events = (recorded.event for decision in voice.decided() for recorded in decision.events)
    return [event.model_id for event in events if isinstance(event, ev.ModelDescribed)]


def apart(hub: MemoryHub, one: str, others: list[str]) -> None:
    for other in others:
        hub.cut(one, other)


def together(hub: MemoryHub, one: str, others: list[str]) -> None:
    for other in others:
        hub.heal(one, other)


def split(voices: dict[str, Voice]) -> tuple[Voice, list[Voice]]:
    """The one that leads, and the others."""
    leader = agreed(*voices.values())
    return voices[leader], [voice for name, voice in voices.items() if name != leader]


def test_whoever_is_asked_all_have_the_same_log(voices: dict[str, Voice]) -> None:
    names = [f"m{n}" for n in range(30)]
    with ThreadPoolExecutor(12) as pool:
        asked = [
            pool.submit(list(voices.values())[n % 3].ask, describe(name)) for n, name in enumerate(names)
        ]
        answers = [answer.result() for answer in asked]
    agreed(*voices.values())
    for voice in voices.values():
        assert sorted(described(voice)) == sorted(names)
        decided = {decision.command_id: decision for decision in voice.decided()}
        assert all(decided[answer.command_id] == answer for answer in answers)


def test_refusals_and_repetitions_are_the_same_everywhere(voices: dict[str, Voice]) -> None:
    refused = cmd.RetryInstance(command_id="retry-1", instance_id="instance-x", by="a user")
    causes = []
    for voice in voices.values():
        with pytest.raises(Rejected) as refusal:
            voice.ask(refused)
        causes.append(refusal.value.cause)
    assert len({cause.message for cause in causes}) == 1
    agreed(*voices.values())
    first, *others = [voice.ask(describe("m")) for voice in voices.values()]
    assert others == [first, first]
    again = msgspec.structs.replace(describe("m"), size_bytes=7)
    for voice in voices.values():
        with pytest.raises(Rejected, match="the key of another request"):
            voice.ask(again)


def test_a_newcomer_takes_the_whole_log(voices: dict[str, Voice], hub: MemoryHub, tmp_path: Path) -> None:
    voices["ann"].ask(describe("m"))
    leader = agreed(*voices.values())
    voices["dan"] = Voice("dan", hub, tmp_path / "dan").start()
    assert agreed(*voices.values()) == leader, "it deposes nobody"
    assert described(voices["dan"]) == ["m"]
    voices["dan"].ask(describe("n"))
    agreed(*voices.values())
    assert described(voices["ann"]) == ["m", "n"]


def test_the_loss_of_the_leader_loses_nothing_and_its_return_changes_nothing(
    voices: dict[str, Voice],
) -> None:
    leader, others = split(voices)
    for n in range(5):
        leader.ask(describe(f"before-{n}"))
    agreed(*voices.values())
    leader.stop()
    in_the_gap = [voice.asking(describe(f"gap-{voice.name}")) for voice in others]
    twice = [voice.asking(describe("twice")) for voice in others]
    for answer in (*in_the_gap, *twice):
        assert answer.get(timeout=ANSWER_S)
    assert agreed(*others) != leader.name
    models = described(others[0])
    assert len(models) == len(set(models)), "once each"
    assert {f"before-{n}" for n in range(5)} | {f"gap-{v.name}" for v in others} | {"twice"} == set(models)
    successor = agreed(*others)
    leader.start()
    assert agreed(*voices.values()) == successor
    assert all(voice.branches() == [] for voice in voices.values())


def test_a_side_that_gives_way_keeps_and_tells_what_it_had_decided(
    voices: dict[str, Voice], hub: MemoryHub
) -> None:
    lone, others = split(voices)
    lone.ask(describe("common"))
    agreed(*voices.values())
    apart(hub, lone.name, [voice.name for voice in others])
    acknowledged = [lone.ask(describe(f"lone-{n}")) for n in range(4)]
    kept = [others[0].ask(describe(f"kept-{n}")) for n in range(3)]
    assert all(isinstance(answer, Committed) for answer in (*acknowledged, *kept))
    assert set(described(lone)) == {"common"} | {f"lone-{n}" for n in range(4)}
    together(hub, lone.name, [voice.name for voice in others])

    def told() -> bool:
        return any(isinstance(r.event, ev.BranchRejected) for d in others[0].decided() for r in d.events)

    eventually(told, 60)
    assert agreed(*voices.values()) != lone.name
    assert described(lone) == ["common", *(f"kept-{n}" for n in range(3))]
    (branch,) = lone.branches()
    assert branch.decisions == len(lone.rejected())
    assert set(lone.rejected()) >= {f"describe-lone-{n}" for n in range(4)}
    (told_of,) = [
        recorded.event
        for decision in others[0].decided()
        for recorded in decision.events
        if isinstance(recorded.event, ev.BranchRejected)
    ]
    assert told_of.node_id == lone.name
    assert told_of.fork == branch.fork
    assert told_of.command_ids == lone.rejected(), "exactly what was given up"
    assert all(voice.branches() == [] for voice in others)


def test_a_command_of_a_lost_side_can_be_asked_again(voices: dict[str, Voice], hub: MemoryHub) -> None:
    lone, others = split(voices)
    apart(hub, lone.name, [voice.name for voice in others])
    lone.ask(describe("m"))
    others[0].ask(describe("n"))
    together(hub, lone.name, [voice.name for voice in others])
    eventually(lambda: bool(lone.branches()), 60)
    agreed(*voices.values())
    answer = lone.ask(describe("m"))
    agreed(*voices.values())
    assert answer in others[0].decided()
    assert described(others[0]) == ["n", "m"]


def test_short_breaks_of_links_change_nothing(voices: dict[str, Voice], hub: MemoryHub) -> None:
    leader, others = split(voices)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(others[n % 2].ask, describe(f"m{n}")) for n in range(12)]
        for other in others:
            hub.break_link(leader.name, other.name)
        answers = [answer.result() for answer in asked]
    agreed(*voices.values())
    assert len({answer.decision_id for answer in answers}) == 12
    assert sorted(described(leader)) == sorted(f"m{n}" for n in range(12))
