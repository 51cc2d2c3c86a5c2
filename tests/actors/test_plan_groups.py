"""The barriers of a group of ranks, and runners that outlive what the log knows of them."""

from __future__ import annotations

import pytest
from support.cards import SMALL
from support.cluster import LIFE, Cluster
from support.planned import Node

from actors import plan as p
from actors.adoption import GATHER_S, KEPT_S
from events import status as st

NODES = ("node-a", "node-b", "node-c")


class Group:
    """An instance over three nodes, each with a worker of its own."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        for node_id in NODES:
            self.cluster.node(node_id, host=f"10.0.0.{1 + NODES.index(node_id)}")
        for node_id in NODES:
            self.cluster.links(node_id, *(other for other in NODES if other != node_id))
        self.cluster.model(path="")
        self.instance_id = self.cluster.place(ranks=3)
        placement = self.cluster.instance(self.instance_id).placement
        assert placement is not None
        self.ranks = placement.ranks
        self.workers = [Node(self.cluster, rank.node_id) for rank in self.ranks]

    def due(self) -> list[list[str]]:
        """What is due on the node of each rank."""
        return [worker.names() for worker in self.workers]

    def carry_out(self) -> list[list[str]]:
        return [worker.carry_out() for worker in self.workers]

    def report(self, status: st.RunnerStatus, *ranks: int) -> None:
        for rank in ranks or range(3):
            self.cluster.runner(status, runner_id=self.ranks[rank].runner_id)

    def store(self, *ranks: int) -> None:
        for rank in ranks or range(3):
            self.cluster.model(node_id=self.ranks[rank].node_id)

    def idle(self) -> Group:
        self.carry_out()
        for rank in range(3):
            self.report(st.Idle(pid=1, started_at=1.0, port=7000 + rank), rank)
        self.carry_out()
        return self

    def connected(self) -> Group:
        self.idle()
        self.store()
        self.carry_out()
        self.report(st.Connecting(), 0, 1)
        self.carry_out()
        self.report(st.Connecting(), 2)
        self.report(st.Connected())
        return self

    def loaded(self) -> Group:
        self.connected()
        self.carry_out()
        self.report(st.Loaded())
        return self


@pytest.fixture
def group() -> Group:
    return Group()


def test_all_nodes_start_a_process_and_fetch_the_files(group: Group) -> None:
    assert group.carry_out() == [["CreateRunner"]] * 3
    group.report(LIFE[0])
    assert group.carry_out() == [["FetchModel"]] * 3


def test_nobody_connects_before_every_node_has_the_files(group: Group) -> None:
    group.idle()
    group.store(0, 2)
    assert group.due() == [[], [], []]
    group.store(1)
    assert group.due() == [["ConnectRunner"], ["ConnectRunner"], []]


def test_nobody_connects_before_every_rank_has_its_process(group: Group) -> None:
    group.store()
    group.carry_out()
    group.report(LIFE[0], 0, 1)
    assert group.due() == [[], [], []]


def test_the_last_rank_connects_when_all_others_are_at_it(group: Group) -> None:
    group.idle()
    group.store()
    assert group.carry_out() == [["ConnectRunner"], ["ConnectRunner"], []]
    group.report(st.Connecting(), 1)
    assert group.due() == [[], [], []]
    group.report(st.Connecting(), 0)
    assert group.carry_out() == [[], [], ["ConnectRunner"]]


def test_all_are_told_the_same_places_by_rank(group: Group) -> None:
    group.idle()
    group.store()
    (first,), (second,), _ = (worker.steps() for worker in group.workers)
    assert isinstance(first, p.ConnectRunner)
    assert isinstance(second, p.ConnectRunner)
    hosts = [group.cluster.state.nodes[rank.node_id].host for rank in group.ranks]
    assert first.hosts == second.hosts == [f"{host}:{7000 + rank}" for rank, host in enumerate(hosts)]


def test_all_load_when_all_are_connected(group: Group) -> None:
    group.idle()
    group.store()
    group.carry_out()
    group.report(st.Connecting(), 0, 1)
    group.carry_out()
    group.report(st.Connecting(), 2)
    group.report(st.Connected(), 0, 2)
    assert group.due() == [[], [], []]
    group.report(st.Connected(), 1)
    assert group.due() == [["LoadModel"]] * 3


def test_a_slow_one_still_loads_when_the_others_have(group: Group) -> None:
    group.connected()
    group.workers[0].carry_out()
    group.report(st.Loading(layers=0, total=10), 0)
    group.workers[1].carry_out()
    group.report(st.Loaded(), 1)
    assert group.due() == [[], [], ["LoadModel"]]


def test_rank_0_warms_up_when_all_others_have_entered_it(group: Group) -> None:
    group.connected()
    assert group.carry_out() == [["LoadModel"]] * 3
    group.report(st.Loaded(), 0, 2)
    assert group.due() == [[], [], []], "one has yet to load"
    group.report(st.Loaded(), 1)
    assert group.carry_out() == [[], ["WarmUpRunner"], ["WarmUpRunner"]]
    group.report(st.WarmingUp(), 2)
    assert group.due() == [[], [], []]
    group.report(st.WarmingUp(), 1)
    assert group.carry_out() == [["WarmUpRunner"], [], []]


def test_a_rank_that_is_quick_to_be_ready_does_not_hold_rank_0_up(group: Group) -> None:
    group.loaded()
    group.carry_out()
    group.report(st.WarmingUp(), 1, 2)
    group.report(st.Ready(), 1)
    assert group.due() == [["WarmUpRunner"], [], []]


def test_tasks_are_dispatched_where_rank_0_is(group: Group) -> None:
    group.loaded()
    group.report(st.WarmingUp())
    group.report(st.Ready())
    group.cluster.create()
    assert group.due() == [["Dispatch"], [], []]


def test_when_one_rank_is_lost_the_others_are_shut_down(group: Group) -> None:
    group.loaded()
    group.cluster.node_lost(group.ranks[1].node_id)
    assert group.workers[0].names() == group.workers[2].names() == ["ShutDownRunner"]


class TestRunnersThatTheLogHasLost:
    """After a partition the log is another one: it never knew, or has buried, what runs here."""

    @pytest.fixture
    def worker(self) -> Node:
        """One whose runner is ready, on a node that was thought dead and is not."""
        cluster = Cluster()
        cluster.node()
        cluster.model()
        worker = Node(cluster)
        instance_id = cluster.place()
        for status in LIFE:
            worker.carry_out()
            cluster.runner(status, instance_id)
        worker.carry_out()
        cluster.node_lost("node-a")
        cluster.node("node-a")
        return worker

    def test_a_ready_one_is_offered_once(self, worker: Node) -> None:
        assert worker.carry_out() == ["OfferRunner"]
        assert worker.names() == []

    def test_what_the_log_knew_is_kept_for_the_offer(self, worker: Node) -> None:
        (local,) = worker.view.runners.values()
        assert (local.processes, local.incarnations) == ([LIFE[0]], ["run-1"])
        assert local.model is not None
        assert local.model.card == SMALL

    def test_it_is_shut_down_where_the_master_has_no_use_for_it(self, worker: Node) -> None:
        worker.carry_out()
        (local,) = worker.view.runners.values()
        local.refused = True
        assert worker.carry_out() == ["ShutDownRunner"]

    def test_it_lives_on_where_it_is_adopted(self, worker: Node) -> None:
        worker.carry_out()
        (local,) = worker.view.runners.values()
        worker.cluster.adopt(local.instance_id, local.placement)
        local.refused = True  # that it was decided is heard of in any case
        assert worker.names() == []
        worker.cluster.create()
        assert worker.names() == ["Dispatch"]

    def test_one_that_was_adopted_and_is_lost_again_is_offered_again(self, worker: Node) -> None:
        worker.carry_out()
        (local,) = worker.view.runners.values()
        worker.cluster.adopt(local.instance_id, local.placement)
        local.refused = True
        worker.carry_out()
        worker.cluster.node_lost("node-a")
        worker.cluster.node("node-a")
        assert worker.carry_out() == ["OfferRunner"]

    def test_one_that_was_not_ready_is_shut_down(self, worker: Node) -> None:
        (local,) = worker.view.runners.values()
        local.ready = False
        assert worker.names() == ["ShutDownRunner"]


class TestGroupsThatTheLogHasLost:
    """Rank 0 is offered for all; the others are kept as long as that may help."""

    @pytest.fixture
    def group(self, group: Group) -> Group:
        """Ready, and lost with all its nodes, which are still to come back."""
        group.loaded()
        group.report(st.WarmingUp())
        group.report(st.Ready())
        group.carry_out()
        for rank in group.ranks:
            group.cluster.node_lost(rank.node_id)
        return group

    def back(self, group: Group, *ranks: int) -> None:
        for rank in ranks:
            group.cluster.node(group.ranks[rank].node_id)

    def adopt(self, group: Group) -> None:
        (local,) = group.workers[0].view.runners.values()
        group.cluster.adopt(local.instance_id, local.placement, group.ranks[0].node_id)

    def test_it_is_offered_once_all_its_nodes_are_back(self, group: Group) -> None:
        self.back(group, 0, 1)
        assert group.due() == [[], [], []]
        self.back(group, 2)
        assert group.carry_out() == [["OfferRunner"], [], []]

    def test_it_is_offered_all_the_same_when_a_node_does_not_come_back(self, group: Group) -> None:
        """And refused: the log then has the reason."""
        self.back(group, 0, 1)
        assert group.due() == [[], [], []]
        (leader, *_) = group.workers
        assert p.next_deadline(group.cluster.state, leader.view) == group.cluster.now + GATHER_S
        group.cluster.now += GATHER_S
        assert group.due() == [["OfferRunner"], [], []]

    def test_all_ranks_serve_on_where_it_is_adopted(self, group: Group) -> None:
        self.back(group, 0, 1, 2)
        group.carry_out()
        self.adopt(group)
        group.cluster.create()
        assert group.carry_out() == [["Dispatch"], [], []]
        group.cluster.now += KEPT_S
        assert group.due() == [[], [], []]
        assert all(p.next_deadline(group.cluster.state, each.view) is None for each in group.workers)

    def test_no_rank_is_kept_for_ever(self, group: Group) -> None:
        """Where rank 0's machine has lost its power nobody closes a socket."""
        self.back(group, 1, 2)
        assert group.due() == [[], [], []]
        deadline = p.next_deadline(group.cluster.state, group.workers[1].view)
        assert deadline == group.cluster.now + KEPT_S
        group.cluster.now = deadline
        assert group.carry_out()[1:] == [["ShutDownRunner"], ["ShutDownRunner"]]

    def test_nobody_keeps_a_rank_of_an_instance_that_is_not_wanted(self, group: Group) -> None:
        self.back(group, 0, 1, 2)
        group.cluster.delete(group.instance_id)
        assert group.carry_out() == [["OfferRunner"], ["ShutDownRunner"], ["ShutDownRunner"]]

    def test_nobody_keeps_a_rank_of_an_instance_that_is_ready_elsewhere(self, group: Group) -> None:
        self.back(group, 0, 1, 2)
        group.cluster.now += 1
        group.cluster.reconcile(group.instance_id)
        placement = group.cluster.instance(group.instance_id).placement
        assert placement is not None
        for rank in placement.ranks:
            for status in LIFE:
                group.cluster.runner(status, runner_id=rank.runner_id)
        for worker, rank in zip(group.workers[1:], group.ranks[1:], strict=True):
            assert p.ShutDownRunner(rank.runner_id) in worker.steps()

    def test_one_that_was_not_ready_is_shut_down(self, group: Group) -> None:
        for worker in group.workers:
            for local in worker.view.runners.values():
                local.ready = False
        assert group.due() == [["ShutDownRunner"]] * 3
