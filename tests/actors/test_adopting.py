"""The decider's rules about runners that live on though the log has lost them: one, and a group of ranks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cards import SMALL
from support.cluster import GIB, KILLED, NODE, Cluster, device, engine
from support.two_nodes import OTHER, all_ready, kinds, placement_of, start, two_nodes

from events import catalogue as ev
from events import status
from events.base import Event
from events.values import Cause, ModelCard, ModelSource, Placement


@pytest.fixture
def cluster() -> Cluster:
    return two_nodes()


class TestALoneRunner:
    @pytest.fixture
    def instance_id(self, cluster: Cluster) -> str:
        """An instance on a node that is lost and comes back with its runner alive."""
        instance_id = all_ready(cluster, cluster.place())
        self.placement = placement_of(cluster, instance_id)
        assert [rank.node_id for rank in self.placement.ranks] == [OTHER]
        cluster.node_lost(OTHER)
        start(cluster)
        return instance_id

    def offer(self, cluster: Cluster, instance_id: str) -> list[Event]:
        return cluster.adopt(instance_id, self.placement, OTHER)

    def refused(self, cluster: Cluster, instance_id: str, origin: str = OTHER) -> str:
        cause = cluster.refused(cluster.adopting(instance_id, self.placement, origin))
        assert cause.code == "not_adopted"
        assert self.placement.ranks[0].runner_id in cause.message
        return cause.message

    def test_a_waiting_instance_goes_on_with_it(self, cluster: Cluster, instance_id: str) -> None:
        events = self.offer(cluster, instance_id)
        assert kinds(events) == ["InstanceRetried", "InstancePlaced", "RunnerStatusChanged", "InstanceReady"]
        (rank,) = self.placement.ranks
        assert events[2] == ev.RunnerStatusChanged(
            runner_id=rank.runner_id, instance_id=instance_id, status=status.Ready()
        )
        assert placement_of(cluster, instance_id) == self.placement
        assert cluster.state.runners[rank.runner_id].current
        (task_id,) = cluster.create()
        assert cluster.state.tasks[task_id].runner_id == rank.runner_id

    def test_a_placement_elsewhere_that_is_not_ready_gives_way(
        self, cluster: Cluster, instance_id: str
    ) -> None:
        cluster.node_lost(OTHER)
        cluster.reconcile(instance_id)
        elsewhere = cluster.runner_of(instance_id)
        assert cluster.state.runners[elsewhere].node_id == NODE
        start(cluster)
        assert kinds(self.offer(cluster, instance_id))[-1] == "InstanceReady"
        assert cluster.runner_of(instance_id) == self.placement.ranks[0].runner_id
        assert not cluster.state.runners[elsewhere].current, "nothing is loaded twice"

    def test_one_that_is_ready_elsewhere_needs_none(self, cluster: Cluster, instance_id: str) -> None:
        cluster.reconcile(instance_id)
        all_ready(cluster, instance_id)
        assert "ready elsewhere" in self.refused(cluster, instance_id)

    def test_one_that_was_adopted_is_not_adopted_again(self, cluster: Cluster, instance_id: str) -> None:
        self.offer(cluster, instance_id)
        assert self.offer(cluster, instance_id) == []

    def test_a_failed_instance_is_well_again(self, cluster: Cluster, instance_id: str) -> None:
        cluster.reconcile(instance_id)
        broken = status.Failed(
            phase="Loading", cause=Cause(code="weights_mismatch", message="Wrong weights.")
        )
        cluster.runner(broken, instance_id)
        assert cluster.instance(instance_id).status == "failed"
        assert kinds(self.offer(cluster, instance_id))[-1] == "InstanceReady"

    def test_nobody_wants_one_of_a_deleted_instance(self, cluster: Cluster, instance_id: str) -> None:
        cluster.delete(instance_id)
        assert "not wanted" in self.refused(cluster, instance_id)

    def test_a_node_that_is_down_or_unknown_has_none(self, cluster: Cluster, instance_id: str) -> None:
        assert "rank 0" in self.refused(cluster, instance_id, origin="node-unheard-of")
        cluster.node_lost(OTHER)
        assert "not up" in self.refused(cluster, instance_id)

    def test_its_retries_are_counted_anew(self, cluster: Cluster, instance_id: str) -> None:
        for _ in range(2):
            cluster.now += 10
            cluster.reconcile(instance_id)
            cluster.runner(KILLED, instance_id)
        assert cluster.instance(instance_id).attempts == 2
        self.offer(cluster, instance_id)
        assert cluster.instance(instance_id).attempts == 0
        assert placement_of(cluster, instance_id).attempt == 1

    def test_its_device_is_not_promised_twice(self, cluster: Cluster, instance_id: str) -> None:
        """What the log has placed there since is there to stay."""
        held = self.placement.ranks[0].reserved_bytes
        memory = held + held // 2
        start(cluster, OTHER, memory)
        cluster.node_lost(OTHER)
        start(cluster, OTHER, memory)
        second = cluster.place(node_id=OTHER)
        message = self.refused(cluster, instance_id)
        assert OTHER in message
        assert "GiB" in message
        cluster.delete(second)
        assert kinds(self.offer(cluster, instance_id))[-1] == "InstanceReady"

    def test_a_device_that_is_no_more_has_no_room(self, cluster: Cluster, instance_id: str) -> None:
        cluster.node_lost(OTHER)
        cluster.node(OTHER, devices=[device("metal:0")], engines=[engine(["metal:0"])])
        assert "0.00 GiB" in self.refused(cluster, instance_id)

    @pytest.mark.parametrize(
        ("card", "source", "adopted"),
        [
            (SMALL, ModelSource(kind="hub", location="org/small", revision="one"), False),
            (SMALL, ModelSource(kind="hub", location=f"org/{SMALL.model_id}"), True),
            (SMALL, ModelSource(kind="directory", location="/where/the/node/has/it"), True),
            (msgspec.structs.replace(SMALL, n_layers=29), None, False),
        ],
    )
    def test_the_model_is_the_one_that_was_loaded(
        self, cluster: Cluster, instance_id: str, card: ModelCard, source: ModelSource | None, adopted: bool
    ) -> None:
        offer = cluster.adopting(instance_id, self.placement, OTHER, card=card, source=source)
        if adopted:
            assert kinds(cluster.do(offer))[-1] == "InstanceReady"
        else:
            assert SMALL.model_id in cluster.refused(offer).message


class TestAGroup:
    """Two ranks on two nodes, both lost and both back."""

    @pytest.fixture
    def instance_id(self, cluster: Cluster) -> str:
        return self.lost(cluster)

    def lost(self, cluster: Cluster) -> str:
        instance_id = all_ready(cluster, cluster.place(ranks=2))
        self.placement = placement_of(cluster, instance_id)
        self.first, self.second = self.placement.ranks
        assert {self.first.node_id, self.second.node_id} == {NODE, OTHER}
        for node_id in (NODE, OTHER):
            cluster.node_lost(node_id)
        for node_id, memory in ((NODE, 16 * GIB), (OTHER, 32 * GIB)):
            start(cluster, node_id, memory)
        return instance_id

    def offer(self, cluster: Cluster, instance_id: str, **changes: object) -> list[Event]:
        return cluster.do(cluster.adopting(instance_id, self.placement, self.first.node_id, **changes))

    def test_all_ranks_go_on(self, cluster: Cluster, instance_id: str) -> None:
        events = self.offer(cluster, instance_id)
        assert kinds(events) == [
            "InstanceRetried",
            "InstancePlaced",
            "RunnerStatusChanged",
            "RunnerStatusChanged",
            "InstanceReady",
        ]
        assert isinstance(events[0], ev.InstanceRetried)
        assert events[0].by == f"node {self.first.node_id}, whose group of 2 runners lives"
        assert cluster.instance(instance_id).status == "ready"
        assert cluster.state.all_ready(cluster.instance(instance_id))

    def test_the_log_has_their_processes(self, cluster: Cluster, instance_id: str) -> None:
        known = [
            status.Idle(pid=11, started_at=1.5, port=7001),
            status.Idle(pid=22, started_at=2.5, port=7002),
        ]
        self.offer(cluster, instance_id, processes=known)
        runners = cluster.state.instance_runners(cluster.instance(instance_id))
        assert [(each.pid, each.process_started_at, each.port) for each in runners] == [
            (11, 1.5, 7001),
            (22, 2.5, 7002),
        ]
        assert all(isinstance(each.status, status.Ready) for each in runners)

    def test_all_nodes_must_be_up(self, cluster: Cluster, instance_id: str) -> None:
        cluster.node_lost(self.second.node_id)
        cause = cluster.refused(cluster.adopting(instance_id, self.placement, self.first.node_id))
        assert f"{self.second.node_id}, which has rank 1, is not up" in cause.message

    def test_no_rank_outlives_its_node(self, cluster: Cluster, instance_id: str) -> None:
        offer = cluster.adopting(
            instance_id, self.placement, self.first.node_id, incarnations=["run-1", "run-0"]
        )
        message = cluster.refused(offer).message
        assert f"{self.second.node_id}, which had rank 1, was started anew" in message
        assert kinds(self.offer(cluster, instance_id, incarnations=["run-1", "run-1"]))[-1] == "InstanceReady"

    def test_a_rank_that_is_told_to_end_ends_the_group(self, cluster: Cluster) -> None:
        """Only the node of rank 0 was lost: the other one's worker knows that the placement is void."""
        instance_id = all_ready(cluster, cluster.place(ranks=2))
        placement = placement_of(cluster, instance_id)
        first, second = placement.ranks
        cluster.node_lost(first.node_id)
        start(cluster, first.node_id)
        cause = cluster.refused(cluster.adopting(instance_id, placement, first.node_id))
        assert f"{second.runner_id}, rank 1, is being shut down" in cause.message

    def test_only_rank_0_speaks_for_all(self, cluster: Cluster, instance_id: str) -> None:
        cause = cluster.refused(cluster.adopting(instance_id, self.placement, self.second.node_id))
        assert "does not have rank 0" in cause.message

    @settings(deadline=None)
    @given(data=st.data())
    def test_adopted_or_refused_with_the_reason_and_nothing_between(self, data: st.DataObject) -> None:
        """Whatever has become of the cluster: either the instance is ready as it ran, or nothing changed."""
        cluster = two_nodes()
        instance_id = self.lost(cluster)
        for node_id in data.draw(st.lists(st.sampled_from([NODE, OTHER]), unique=True)):
            held = sum(rank.reserved_bytes for rank in self.placement.ranks if rank.node_id == node_id)
            cluster.node_lost(node_id)
            start(cluster, node_id, int(held * data.draw(st.sampled_from([0.5, 1.0, 3.0, 30.0]))))
        if data.draw(st.booleans()):
            cluster.links(NODE, OTHER)
            cluster.now += 10
            cluster.reconcile(instance_id)
            if cluster.instance(instance_id).status == "placed" and data.draw(st.booleans()):
                all_ready(cluster, instance_id)
        command = cluster.adopting(instance_id, self.placement, self.first.node_id)
        before = cluster.instance(instance_id)
        if _fits(cluster, self.placement) and before.status != "ready":
            cluster.do(command)
            assert cluster.instance(instance_id).status == "ready"
            assert placement_of(cluster, instance_id) == self.placement
        else:
            assert cluster.refused(command).message.endswith(".")
            assert cluster.instance(instance_id) == before


def _fits(cluster: Cluster, placement: Placement) -> bool:
    return all(
        rank.reserved_bytes <= cluster.state.nodes[rank.node_id].devices[0].memory_bytes
        for rank in placement.ranks
    )
