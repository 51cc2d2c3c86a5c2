"""Stories: complete, in order, and in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.histories import History, logged

from events import catalogue as ev
from events import commands as cmd
from events.reader import LogReader
from events.record import Draft, Recorded
from events.status import Failed
from projections.timeline import timeline
from projections.why import Story, Unknown, render_text, why


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> LogReader:
    return logged(tmp_path_factory.mktemp("why"), History(5).take(800))


def killed_runner(reader: LogReader) -> tuple[Recorded, ev.RunnerStatusChanged, list[Recorded]]:
    """A runner that was killed while current: its end and what was decided with it."""
    for recorded in reader.events(types=["RunnerStatusChanged"]):
        event = recorded.event
        assert isinstance(event, ev.RunnerStatusChanged)
        if not isinstance(event.status, Failed) or not event.status.diagnostics.signal:
            continue
        decision = reader.decision(recorded.decision_id)
        assert decision is not None
        if any(isinstance(each.event, ev.InstanceSetBack) for each in decision.events):
            return recorded, event, decision.events
    raise AssertionError("the history has no killed runner")


def seqs(story: Story) -> list[int]:
    return [link.seq for link in story.links]


def test_a_killed_runner_names_signal_phase_place_and_what_followed(reader: LogReader) -> None:
    recorded, event, together = killed_runner(reader)
    assert isinstance(event.status, Failed)
    story = why(reader, event.runner_id)
    assert story.kind == "runner"
    assert seqs(story) == sorted(set(seqs(story)))
    assert {each.seq for each in together} <= set(seqs(story))
    placed = next(link for link in story.links if "was placed" in link.sentence)
    assert any("was chosen: " in detail for detail in placed.details)
    end = next(link for link in story.links if link.seq == recorded.seq)
    place = f"(rank 0 of {event.instance_id} on "
    assert end.sentence.startswith(f"{event.runner_id} {place}")
    assert end.sentence.endswith(f"was killed by signal SIGKILL while {event.status.phase}")
    assert end.details == ["loading", "Killed"]
    assert end.failure
    back = next(link for link in story.links if link.seq > recorded.seq and "set back" in link.sentence)
    assert "to be placed again after" in back.sentence
    assert back.because.startswith(f"because {event.runner_id} {place}")


def test_an_instance_has_all_its_events(reader: LogReader) -> None:
    _, event, _ = killed_runner(reader)
    story = why(reader, event.instance_id)
    own = {each.seq for each in reader.events(subject=event.instance_id) if not each.event.OBSERVATION}
    assert story.kind == "instance"
    assert own <= set(seqs(story))
    assert story.links[0].because.startswith("because someone asked to run ")
    assert story.links[0].because.endswith(f"(decision {story.links[0].decision_id})")


def test_a_new_placement_names_what_made_it_necessary(reader: LogReader) -> None:
    for recorded in reader.events(types=["InstanceSetBack"]):
        story = why(reader, recorded.event.subject)
        after = [link for link in story.links if link.seq > recorded.seq and "was placed" in link.sentence]
        if after and f"see #{recorded.seq}" in after[0].because:
            return
    raise AssertionError("no placement points at the set-back before it")


def test_a_lost_node_does_not_mix_instances_up(reader: LogReader) -> None:
    for recorded in reader.events(types=["NodeStopped"]):
        decision = reader.decision(recorded.decision_id)
        assert decision is not None
        back = [each for each in decision.events if isinstance(each.event, ev.InstanceSetBack)]
        if len(back) > 1:
            story = why(reader, back[0].event.subject)
            assert back[0].seq in seqs(story)
            assert recorded.seq in seqs(story)
            assert back[1].seq not in seqs(story)
            assert {each.seq for each in decision.events} <= set(seqs(why(reader, decision.origin)))
            return
    raise AssertionError("no node was lost with two instances")


def test_a_failed_task_tells_of_its_runner(reader: LogReader) -> None:
    for recorded in reader.events(types=["TaskFailed"]):
        decision = reader.decision(recorded.decision_id)
        if decision is not None and isinstance(decision.command, cmd.ReportRunner):
            story = why(reader, recorded.event.subject)
            assert story.kind == "task"
            assert {recorded.seq, decision.first_seq} <= set(seqs(story))
            assert any("was given to" in link.sentence for link in story.links)
            return
    raise AssertionError("no task failed with its runner")


@pytest.mark.parametrize(
    ("kind", "event_type", "field"),
    [
        ("request", "TaskCreated", "request_id"),
        ("task", "TaskFinished", "task_id"),
        ("node", "NodeStarted", "node_id"),
        ("model", "ModelDescribed", "model_id"),
        ("actor", "ActorFailed", "actor"),
    ],
)
def test_each_kind_of_thing_has_a_story(reader: LogReader, kind: str, event_type: str, field: str) -> None:
    first = next(reader.events(types=[event_type]))
    story = why(reader, getattr(first.event, field))
    assert story.kind == kind
    assert first.seq in seqs(story)
    assert render_text(story).startswith(f"{kind.capitalize()} {story.id}:\n")


def test_a_runner_that_never_said_a_word_has_its_placement(tmp_path: Path) -> None:
    history: list[Draft] = []
    for draft in History(5):
        history.append(draft)
        if any(isinstance(event, ev.InstancePlaced) for event in draft.events):
            break
    reader = logged(tmp_path, history)
    (placed,) = reader.events(types=["InstancePlaced"])
    assert isinstance(placed.event, ev.InstancePlaced)
    story = why(reader, placed.event.placement.ranks[0].runner_id)
    assert story.kind == "runner"
    assert seqs(story) == [placed.seq]


def test_a_rejection_tells_its_reason(reader: LogReader) -> None:
    rejected = next(d for d in reader.decisions() if d.rejection)
    assert rejected.rejection is not None
    (link,) = why(reader, str(rejected.decision_id)).links
    assert rejected.rejection.message.rstrip(". ") in link.sentence
    assert link.seq == 0


def test_a_failure_is_found_by_its_number(reader: LogReader) -> None:
    recorded, _, together = killed_runner(reader)
    story = why(reader, f"#{recorded.seq}")
    assert story.kind == "event"
    assert {each.seq for each in together} <= set(seqs(story))
    assert seqs(why(reader, str(recorded.decision_id))) == seqs(story)


@pytest.mark.parametrize("entity_id", ["instance-never", "99999", "#99999"])
def test_an_unknown_id_is_an_error_that_helps(reader: LogReader, entity_id: str) -> None:
    with pytest.raises(Unknown, match=r"the number of a decision|the log has"):
        why(reader, entity_id)


def test_every_id_in_a_history_has_a_story(reader: LogReader) -> None:
    subjects = {recorded.event.subject for recorded in reader.events()}
    for subject in sorted(subjects):
        assert render_text(why(reader, subject))
    for decision in reader.decisions():
        assert why(reader, str(decision.decision_id)).links


def test_the_timeline_has_every_event_once(reader: LogReader) -> None:
    lines = list(timeline(reader))
    assert [line.seq for line in lines] == list(range(1, reader.head() + 1))
    assert all(f" {line.sentence}" in line.render() for line in lines)


def test_the_timeline_is_filtered(reader: LogReader) -> None:
    everything = list(timeline(reader))
    middle = everything[len(everything) // 2]
    assert list(timeline(reader, after=middle.seq)) == everything[middle.seq :]
    assert list(timeline(reader, upto=middle.seq)) == everything[: middle.seq]
    assert list(timeline(reader, since=middle.at)) == [line for line in everything if line.at > middle.at]
    assert list(timeline(reader, until=middle.at)) == [line for line in everything if line.at <= middle.at]
    failed = list(timeline(reader, failures=True))
    assert failed == [line for line in everything if line.failure]
    assert all(" ! " in line.render() for line in failed)
    only = list(timeline(reader, types=["TaskFinished"]))
    assert {line.type for line in only} == {"TaskFinished"}
    _, event, _ = killed_runner(reader)
    about = list(timeline(reader, subject=event.runner_id))
    assert {"InstancePlaced", "RunnerStatusChanged"} <= {line.type for line in about}
    for ended in reader.events(types=["TaskFailed", "TaskFinished"]):
        (task,) = (each.event for each in reader.events(subject=ended.event.subject, types=["TaskCreated"]))
        assert isinstance(task, ev.TaskCreated)
        for concerned in (task.instance_id, task.runner_id, task.request_id):
            told = timeline(reader, after=ended.seq - 1, upto=ended.seq, subject=concerned)
            assert [line.seq for line in told] == [ended.seq]
    with pytest.raises(ValueError, match="NoSuchType"):
        list(timeline(reader, types=["NoSuchType"]))
