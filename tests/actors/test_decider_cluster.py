"""The decider's rules about many nodes: lost ones, links, refused peers, branches, runners that live on."""

from __future__ import annotations

import pytest
from support.cluster import KILLED, LIFE, NODE, NOTHING, Cluster
from support.two_nodes import OTHER, all_ready, kinds, placement_of, two_nodes

from actors.deciding.nodes import LINK_FACTOR
from events import catalogue as ev
from events import commands as cmd
from events.values import Cause
from projections.state import Link

NOT_HEARD = Cause(code="node_lost", message=f"Node {OTHER} has not been heard for 1.5 s.")


@pytest.fixture
def cluster() -> Cluster:
    return two_nodes()


class TestGroups:
    def test_an_instance_is_ready_when_its_last_rank_is(self, cluster: Cluster) -> None:
        instance_id = cluster.place(ranks=2)
        first, last = placement_of(cluster, instance_id).ranks
        assert {first.node_id, last.node_id} == {NODE, OTHER}
        for status in LIFE:
            cluster.runner(status, runner_id=last.runner_id)
        assert cluster.instance(instance_id).status == "placed"
        for status in LIFE[:-1]:
            cluster.runner(status, runner_id=first.runner_id)
        assert kinds(cluster.runner(LIFE[-1], runner_id=first.runner_id)) == [
            "RunnerStatusChanged",
            "InstanceReady",
        ]

    def test_tasks_go_to_rank_0(self, cluster: Cluster) -> None:
        instance_id = all_ready(cluster, cluster.place(ranks=2))
        (task_id,) = cluster.create(api_node=OTHER)
        task = cluster.state.tasks[task_id]
        assert task.runner_id == placement_of(cluster, instance_id).ranks[0].runner_id
        assert task.api_node == OTHER

    @pytest.mark.parametrize("rank", [0, 1])
    def test_the_end_of_one_rank_ends_the_group(self, cluster: Cluster, rank: int) -> None:
        instance_id = all_ready(cluster, cluster.place(ranks=2))
        ranks = placement_of(cluster, instance_id).ranks
        cluster.create()
        events = cluster.runner(KILLED, runner_id=ranks[rank].runner_id)
        assert kinds(events) == ["RunnerStatusChanged", "TaskFailed", "InstanceSetBack"]
        (survivor,) = cluster.state.runners.values()
        assert survivor.runner_id == ranks[1 - rank].runner_id
        assert not survivor.current, "it is to be shut down"


class TestNodeLost:
    def test_what_ran_there_ends_and_what_ran_elsewhere_goes_on(self, cluster: Cluster) -> None:
        here = all_ready(cluster, cluster.place(node_id=NODE))
        there = all_ready(cluster, cluster.place(node_id=OTHER))
        both = all_ready(cluster, cluster.place(ranks=2))
        tasks = {each: cluster.create(instance_id=each)[0] for each in (here, there, both)}
        (survivor,) = (r for r in placement_of(cluster, both).ranks if r.node_id == NODE)
        events = cluster.node_lost(OTHER, cause=NOT_HEARD)
        assert kinds(events) == [
            *["RunnerStatusChanged"] * 2,
            *["TaskFailed", "InstanceSetBack"] * 2,
            "NodeStopped",
        ]
        assert events[-1] == ev.NodeStopped(node_id=OTHER, incarnation="run-1", clean=False, cause=NOT_HEARD)
        failed = [event for event in events if isinstance(event, ev.TaskFailed)]
        assert failed == [
            ev.TaskFailed(task_id=tasks[each], cause=NOT_HEARD, usage=NOTHING) for each in (there, both)
        ]
        assert cluster.instance(here).status == "ready"
        assert list(cluster.state.tasks) == [tasks[here]]
        for each in (there, both):
            instance = cluster.instance(each)
            assert (instance.status, instance.attempts, instance.retry_at) == ("waiting", 0, cluster.now)
        assert not cluster.state.runners[survivor.runner_id].current, "the other rank is to be shut down"

    def test_it_is_placed_again_on_what_is_left(self, cluster: Cluster) -> None:
        instance_id = all_ready(cluster, cluster.place())
        lost = placement_of(cluster, instance_id).ranks[0].node_id
        cluster.node_lost(lost)
        assert kinds(cluster.reconcile(instance_id)) == ["InstancePlaced"]
        assert placement_of(cluster, instance_id).ranks[0].node_id != lost

    def test_one_that_was_started_again_or_is_not_there_is_not_lost(self, cluster: Cluster) -> None:
        cluster.node(OTHER, incarnation="run-2")
        assert cluster.node_lost(OTHER) == []
        assert cluster.node_lost("node-unheard-of") == []
        cluster.node_stops(OTHER, incarnation="run-2")
        assert cluster.node_lost(OTHER, incarnation="run-2") == []

    def test_one_that_was_thought_dead_says_that_it_is_not(self, cluster: Cluster) -> None:
        cluster.node_lost(OTHER)
        assert not cluster.state.nodes[OTHER].up
        assert kinds(cluster.node(OTHER)) == ["NodeStarted"], "the same incarnation"
        assert cluster.state.nodes[OTHER].up


class TestLinks:
    def test_a_new_reach_is_recorded_and_replaces_the_old_one(self, cluster: Cluster) -> None:
        cluster.node("node-c")
        events = cluster.links(NODE, OTHER, "node-c")
        assert kinds(events) == ["LinksChanged"]
        assert cluster.state.links[NODE, "node-c"] == Link(latency_s=0.001, bandwidth=1e8)
        assert kinds(cluster.links(NODE, "node-c")) == ["LinksChanged"]
        assert {pair for pair in cluster.state.links if pair[0] == NODE} == {(NODE, "node-c")}
        assert kinds(cluster.links(NODE)) == ["LinksChanged"]
        assert cluster.links(NODE) == []

    @pytest.mark.parametrize("factor", [1 / LINK_FACTOR, 0.5, 1.0, 2.0, LINK_FACTOR])
    def test_readings_that_wander_are_no_news(self, cluster: Cluster, factor: float) -> None:
        assert cluster.links(NODE, OTHER, latency=0.001 * factor) == []
        assert cluster.links(NODE, OTHER, bandwidth=1e8 * factor) == []

    @pytest.mark.parametrize("factor", [0.9 / LINK_FACTOR, 1.1 * LINK_FACTOR])
    def test_a_way_that_became_much_faster_or_slower_is(self, cluster: Cluster, factor: float) -> None:
        assert kinds(cluster.links(NODE, OTHER, latency=0.001 * factor)) == ["LinksChanged"]
        assert kinds(cluster.links(NODE, OTHER, latency=0.001 * factor, bandwidth=1e8 * factor)) == [
            "LinksChanged"
        ]

    def test_a_bandwidth_that_was_not_known_is_news_once(self, cluster: Cluster) -> None:
        cluster.links(NODE, OTHER, bandwidth=0.0)
        assert cluster.links(NODE, OTHER, bandwidth=0.0) == []
        assert kinds(cluster.links(NODE, OTHER, bandwidth=1e8)) == ["LinksChanged"]

    def test_a_lost_node_is_reached_by_nobody(self, cluster: Cluster) -> None:
        cluster.node_lost(OTHER)
        assert cluster.state.links == {}
        assert cluster.links(OTHER, NODE) == [], "it is down"
        assert cluster.links("node-unheard-of", NODE) == []


def test_who_was_turned_away_is_recorded(cluster: Cluster) -> None:
    report = cmd.ReportRefusedPeer(command_id="r", origin=OTHER, host="10.0.0.66", reason="It has no secret.")
    assert cluster.do(report) == [ev.PeerRefused(node_id=OTHER, host="10.0.0.66", reason="It has no secret.")]


def test_what_a_lost_side_gave_up_is_recorded(cluster: Cluster) -> None:
    fields = {"fork": 7, "winner": "3/node-a/run-1", "reason": "it has more followers"}
    report = cmd.ReportBranch(command_id="r", origin=OTHER, command_ids=["place-1", "x"], **fields)  # type: ignore[arg-type]
    assert cluster.do(report) == [
        ev.BranchRejected(node_id=OTHER, command_ids=["place-1", "x"], **fields)  # type: ignore[arg-type]
    ]
