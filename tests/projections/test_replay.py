"""Any point of the log can be seen again, and what changed between two."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from support.histories import History, drafts, logged

from events.catalogue import NodeResourcesChanged
from events.record import Draft
from projections.evolve import apply
from projections.replay import Change, Unreachable, diff, state_at, state_at_time
from projections.state import ClusterState, Link


@settings(max_examples=20, deadline=None)
@given(drafts(60))
def test_the_state_at_every_position_and_time_is_the_fold_up_to_there(history: list[Draft]) -> None:
    with tempfile.TemporaryDirectory() as name:
        reader = logged(Path(name), history)
        folded, seq = ClusterState(), 0
        for draft in history:
            for event in draft.events:
                seq += 1
                apply(folded, seq, draft.epoch, draft.facts.now, event)
            assert state_at(reader, seq) == folded
            assert state_at_time(reader, draft.facts.now) == folded


def test_a_position_beyond_the_head_is_an_error(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(3).take(20))
    with pytest.raises(Unreachable, match=r"There is no event 999: the log has events 1 to \d+\."):
        state_at(reader, 999)
    with pytest.raises(Unreachable):
        state_at(reader, -1)
    assert state_at(reader, 0) == ClusterState()
    assert state_at_time(reader, 0.0) == ClusterState()


def test_a_diff_names_the_field_with_its_values(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(3).take(300))
    changed = next(reader.events(types=["NodeResourcesChanged"]))
    assert isinstance(changed.event, NodeResourcesChanged)
    before, after = state_at(reader, changed.seq - 1), state_at(reader, changed.seq)
    node_id = changed.event.node_id
    was = before.nodes[node_id]
    assert diff(before, after) == [
        Change("node", node_id, "memory_available", was.memory_available, changed.event.memory_available),
        Change("node", node_id, "disk_free", was.disk_free, changed.event.disk_free),
    ]


def test_a_diff_names_what_came_and_went(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(3).take(300))
    finished = next(reader.events(types=["TaskFinished", "TaskFailed"]))
    before, after = state_at(reader, finished.seq - 1), state_at(reader, finished.seq)
    (gone,) = [change for change in diff(before, after) if change.entity == "task"]
    assert (gone.id, gone.field, gone.after) == (finished.event.subject, "", None)
    assert gone.before["instance_id"] == before.tasks[gone.id].instance_id
    (came,) = [change for change in diff(after, before) if change.entity == "task"]
    assert (came.before, came.after) == (None, gone.before)


def test_a_diff_names_links_and_can_be_printed() -> None:
    before, after = ClusterState(), ClusterState()
    before.links["node-a", "node-b"] = Link(latency_s=0.5, bandwidth=1e9)
    after.links["node-a", "node-b"] = Link(latency_s=0.25, bandwidth=1e9)
    after.links["node-b", "node-a"] = Link(latency_s=0.25, bandwidth=1e9)
    changes = diff(before, after)
    assert changes == [
        Change("link", "node-a to node-b", "latency_s", 0.5, 0.25),
        Change("link", "node-b to node-a", "", None, {"latency_s": 0.25, "bandwidth": 1e9}),
    ]
    assert msgspec.json.decode(msgspec.json.encode(changes), type=list[Change]) == changes


def test_equal_states_have_no_diff(tmp_path: Path) -> None:
    reader = logged(tmp_path, History(3).take(100))
    assert diff(state_at(reader, 50), state_at(reader, 50)) == []
    assert diff(ClusterState(), state_at(reader, 1)) == [
        Change("cluster", "", "epoch", 0, 1),
        Change("cluster", "", "master", "", "node-anna"),
    ]
