"""Deciding again: the same bytes from the same code, and a planted difference found at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from support.histories import History, drafts, logged

from actors.decider import VERSION, decide, make_decider
from actors.placement import best_fit
from actors.refusal import Rejected
from events.base import Command, Event
from events.catalogue import InstancePlaced, TaskCancelRequested
from events.commands import CancelTasks, Facts, PlaceInstance
from events.reader import LogReader
from events.record import Draft
from events.values import Cause
from projections.deciding import Decide, NotADecider
from projections.state import ClusterState
from projections.verify import VerifyReport, verify
from projections.whatif import what_if


def check(
    reader: LogReader, decider: Decide = decide, version: int = VERSION, start: int = 0
) -> VerifyReport:
    return verify(reader, decider, refusal=Rejected, decider_version=version, start=start)


@settings(max_examples=30, deadline=None)
@given(drafts(150))
def test_the_decider_decides_the_same_again(history: list[Draft]) -> None:
    with tempfile.TemporaryDirectory() as name:
        report = check(logged(Path(name), history))
    assert (report.checked, report.differences, report.first, report.ok) == (len(history), 0, None, True)


def reason_is_cut(state: ClusterState, command: Command, facts: Facts) -> list[Event]:
    """The decider, but for one thing: cancellations lose their reason."""
    events = decide(state, command, facts)
    if not isinstance(command, CancelTasks):
        return events
    return [TaskCancelRequested(task_id=event.subject, reason="") for event in events]


def test_the_first_difference_is_named_with_both_outcomes(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(10).take(600))
    report = check(reader, reason_is_cut)
    cancelled = [d for d in reader.decisions() if isinstance(d.command, CancelTasks) and d.events]
    assert report.differences == len(cancelled) > 1
    assert report.first is not None
    assert report.first.decision_id == cancelled[0].decision_id
    assert report.first.seq == cancelled[0].first_seq
    assert report.first.recorded.events == [recorded.event for recorded in cancelled[0].events]
    task_id = cancelled[0].events[0].event.subject
    assert report.first.decided.events == [TaskCancelRequested(task_id=task_id, reason="")]
    text = report.render()
    assert f"Decision {cancelled[0].decision_id} (event {cancelled[0].first_seq})" in text
    assert 'at events[0].reason: "the client has gone" against ""' in text


def test_a_difference_does_not_beget_others(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(10).take(600))

    def forgets_one(state: ClusterState, command: Command, facts: Facts) -> list[Event]:
        return [] if command.command_id == forgotten else decide(state, command, facts)

    placed = next(d for d in reader.decisions() if isinstance(d.command, PlaceInstance) and d.events)
    forgotten = placed.command_id
    assert check(reader, forgets_one).differences == 1


def test_a_rejection_that_changes_is_a_difference(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(8).take(100))

    def blunt(state: ClusterState, command: Command, facts: Facts) -> list[Event]:
        try:
            return decide(state, command, facts)
        except Rejected:
            raise Rejected(Cause(code="no", message="No.")) from None

    rejected = [decision for decision in reader.decisions() if decision.rejection]
    report = check(reader, blunt)
    assert report.differences == len(rejected) > 0
    assert "  + rejected: No." in report.render()


def test_a_decider_that_breaks_is_a_difference_and_not_a_crash(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(8).take(100))

    def broken(state: ClusterState, command: Command, facts: Facts) -> list[Event]:
        raise KeyError(command.command_id)

    report = check(reader, broken)
    assert report.differences == 100
    assert "the decider broke: KeyError: 'cmd-start'" in report.render()


def test_a_refusal_without_a_cause_says_what_to_do(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(8).take(10))

    def wrong(state: ClusterState, command: Command, facts: Facts) -> list[Event]:
        raise ValueError

    with pytest.raises(NotADecider, match="ValueError has no cause"):
        verify(reader, wrong, refusal=ValueError, decider_version=VERSION)


def test_decisions_of_another_version_are_counted_apart(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(10).take(600))
    report = check(reader, reason_is_cut, version=VERSION + 1)
    other = report.other_versions[VERSION]
    assert report.ok
    assert report.checked == 0
    assert other.decisions == 600
    assert other.diverged > 1
    assert f"{other.diverged} diverged as of version {VERSION + 1}" in report.render()


def test_a_start_skips_what_went_before(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(10).take(600))
    report = check(reader, start=450)
    assert (report.checked, report.differences) == (150, 0)


SET_ITERATING = """
import sys
from pathlib import Path
from actors.decider import VERSION, decide
from actors.refusal import Rejected
from events.commands import CreateTasks
from events.log import EventLog
from events.reader import LogReader
from events.record import Draft
from projections.evolve import apply
from projections.state import ClusterState
from projections.verify import verify

def careless(state, command, facts):
    events = decide(state, command, facts)
    by_id = {event.task_id: event for event in events} if isinstance(command, CreateTasks) else None
    return [by_id[each] for each in set(by_id)] if by_id else events

source, target, mode = sys.argv[1:]
if mode == "record":
    state, log = ClusterState(), EventLog.open(Path(target))
    for d in LogReader.open(Path(source)).decisions():
        if d.rejection is None:
            events = careless(state, d.command, d.facts)
            draft = Draft(command=d.command, facts=d.facts, decider=d.decider,
                          decider_version=d.decider_version, events=events)
            for each in log.append([draft])[0].events:
                apply(state, each.seq, each.epoch, each.at, each.event)
    log.close()
else:
    report = verify(LogReader.open(Path(target)), careless, refusal=Rejected, decider_version=VERSION)
    print(report.differences, type(report.first.command).__name__ if report.first else "")
"""


def test_an_iterated_set_is_found_out(tmp_path: Path) -> None:
    """Another process has other string hashes, so that a decider which iterates a set gives itself away."""
    logged(tmp_path, History(10).take(600)).close()

    def run(mode: str, hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        arguments = [sys.executable, "-c", SET_ITERATING, tmp_path / "log.db", tmp_path / "careless.db", mode]
        result = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return result.stdout.strip()

    run("record", "1")
    assert run("verify", "1") == "0"
    differences, command = run("verify", "2").split()
    assert int(differences) > 3
    assert command == "CreateTasks"


def test_what_if_shows_only_what_another_policy_changes(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(5).take(1500))
    assert what_if(reader, decide, decide, refusal=Rejected).changed == []
    report = what_if(reader, decide, make_decider(best_fit), refusal=Rejected)
    assert report.decisions == 1500
    assert report.changed
    for change in report.changed:
        placed = [
            e for e in (*change.recorded.events, *change.decided.events) if isinstance(e, InstancePlaced)
        ]
        assert placed[0].placement != placed[1].placement
        without = [msgspec.structs.replace(each.placement, ranks=[]) for each in placed]
        assert without[0] == without[1]
    text = report.render()
    assert text.startswith(f"{len(report.changed)} of 1500 decisions would change:")
    assert "placement.ranks[0].device_id" in text or "placement.ranks[0].node_id" in text
