"""The worker's plan: each step's condition, the order of steps, and that what was done is not due again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cards import QUANTIZED, SMALL
from support.cluster import KILLED, LIFE, NODE, Cluster
from support.planned import Node

from actors.plan import (
    AbandonTask,
    CancelTask,
    CreateRunner,
    Dispatch,
    FetchModel,
    LoadModel,
    LocalRunner,
    LocalView,
    ReportLost,
    ReportNeverSpawned,
    ShutDownRunner,
    WarmUpRunner,
    next_deadline,
)
from events import status as st
from events.values import Cause, Placement

IDLE, LOADING, _, LOADED, WARMING, READY = LIFE
ORDER = [
    CancelTask,
    AbandonTask,
    ShutDownRunner,
    ReportLost,
    ReportNeverSpawned,
    CreateRunner,
    FetchModel,
    LoadModel,
    WarmUpRunner,
    Dispatch,
]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.node()
    return cluster


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return Node(cluster)


def serving(node: Node) -> str:
    """Bring an instance to Ready, step by step as a worker does."""
    node.cluster.model()
    instance_id = node.cluster.place()
    for status in LIFE:
        node.carry_out()
        node.cluster.runner(status, instance_id)
    assert node.carry_out() == []
    return instance_id


def test_from_a_wish_to_the_first_token(cluster: Cluster, node: Node) -> None:
    cluster.model(path="")
    instance_id = cluster.place()
    runner_id = cluster.runner_of(instance_id)
    assert node.carry_out() == ["CreateRunner"]
    cluster.runner(IDLE, instance_id)
    assert node.carry_out() == ["FetchModel"]
    cluster.download()
    cluster.download(50, 100)
    assert node.carry_out() == []
    cluster.model()
    (load,) = node.steps()
    assert isinstance(load, LoadModel)
    assert (load.runner_id, load.model.paths) == (runner_id, {NODE: "/models/m"})
    assert node.carry_out() == ["LoadModel"]
    cluster.runner(LOADING, instance_id)
    assert node.carry_out() == []
    cluster.runner(LOADED, instance_id)
    assert node.carry_out() == ["WarmUpRunner"]
    cluster.runner(WARMING, instance_id)
    cluster.runner(READY, instance_id)
    assert node.carry_out() == []
    cluster.create(2)
    assert node.carry_out() == ["Dispatch", "Dispatch"]


def test_the_order_is_the_first_seeds(cluster: Cluster, node: Node) -> None:
    """Everything due at once."""
    serving(node)
    (dispatched,) = cluster.create()
    doomed = cluster.place()
    node.carry_out()
    cluster.delete(doomed)
    lost = _supervised(node)
    del node.view.runners[cluster.runner_of(lost)]
    cluster.delete(cluster.place())
    cluster.model(QUANTIZED, path="")
    warm, _ = _supervised(node), _supervised(node)
    _supervised(node, QUANTIZED.model_id)
    node.view.runners[cluster.runner_of(warm)].loading = True
    cluster.runner(LOADED, warm)
    cluster.place()
    (dropped, _) = cluster.create(2)
    cluster.cancel(dispatched, dropped)
    assert [type(step) for step in node.steps()] == ORDER


def _supervised(node: Node, model_id: str = SMALL.model_id) -> str:
    """An instance whose runner is idle and has had no order yet."""
    instance_id = node.cluster.place(model_id)
    runner_id = node.cluster.runner_of(instance_id)
    placement = node.cluster.instance(instance_id).placement
    assert placement is not None
    node.view.spent.add(runner_id)
    node.view.runners[runner_id] = LocalRunner(instance_id, placement)
    node.cluster.runner(IDLE, instance_id)
    return instance_id


@pytest.mark.parametrize("status", [LOADING, LOADED, WARMING, READY], ids=st.name)
def test_a_model_is_loaded_by_an_idle_runner_only(
    cluster: Cluster, node: Node, status: st.RunnerStatus
) -> None:
    cluster.model()
    instance_id = cluster.place()
    node.carry_out()
    cluster.runner(IDLE, instance_id)
    assert node.names() == ["LoadModel"]
    cluster.runner(status, instance_id)
    assert "LoadModel" not in node.names()


def test_nothing_is_due_for_runners_of_other_nodes(cluster: Cluster) -> None:
    other = Node(cluster)
    other.view = replace(other.view, node_id="node-b")
    cluster.model()
    instance_id = cluster.place()
    for status in LIFE:
        assert other.names() == []
        cluster.runner(status, instance_id)
    (task_id,) = cluster.create()
    cluster.cancel(task_id)
    assert other.names() == []
    cluster.delete(instance_id)
    assert other.names() == []


class TestTasks:
    def test_one_that_a_runner_has_is_cancelled_there(self, cluster: Cluster, node: Node) -> None:
        serving(node)
        (task_id,) = cluster.create()
        node.carry_out()
        cluster.cancel(task_id)
        assert node.carry_out() == ["CancelTask"]

    def test_one_that_no_runner_got_is_abandoned(self, cluster: Cluster, node: Node) -> None:
        serving(node)
        (task_id,) = cluster.create()
        cluster.cancel(task_id)
        assert node.carry_out() == ["AbandonTask"]


class TestRunners:
    def test_one_whose_placement_is_void_is_shut_down(self, cluster: Cluster, node: Node) -> None:
        instance_id = serving(node)
        cluster.delete(instance_id)
        assert node.carry_out() == ["ShutDownRunner"]

    def test_one_that_the_state_has_forgotten_is_shut_down(self, cluster: Cluster, node: Node) -> None:
        placement = Placement(
            attempt=1, engine="mlx", dtype="float32", strategy="auto", context=512, batch=1, ranks=[]
        )
        node.view.runners["runner-x"] = LocalRunner("instance-x", placement)
        assert node.carry_out() == ["ShutDownRunner"]

    def test_one_that_only_the_state_has_is_lost(self, cluster: Cluster, node: Node) -> None:
        instance_id = serving(node)
        node.view = LocalView(node_id=NODE)
        (step,) = node.steps()
        assert isinstance(step, ReportLost)
        assert step.runner.runner_id == cluster.runner_of(instance_id)
        node.carry_out()
        assert cluster.instance(instance_id).status == "waiting"

    def test_one_that_was_not_spawned_before_its_end_has_ended(self, cluster: Cluster, node: Node) -> None:
        cluster.model()
        instance_id = cluster.place()
        cluster.delete(instance_id)
        assert node.carry_out() == ["ReportNeverSpawned"]

    def test_an_id_is_never_used_for_a_second_process(self, cluster: Cluster, node: Node) -> None:
        cluster.model()
        cluster.place()
        node.carry_out()
        node.view.runners.clear()
        assert node.names() == []

    def test_a_new_placement_is_a_new_runner(self, cluster: Cluster, node: Node) -> None:
        instance_id = serving(node)
        old = cluster.runner_of(instance_id)
        cluster.runner(KILLED, instance_id)
        del node.view.runners[old]
        assert node.carry_out() == []
        cluster.now += 10
        cluster.reconcile(instance_id)
        assert node.carry_out() == ["CreateRunner"]
        assert cluster.runner_of(instance_id) != old


class TestFetching:
    LOST = Cause(code="hub_unreachable", message="The hub did not answer.")

    def test_a_failed_fetch_is_due_again_at_its_time(self, cluster: Cluster, node: Node) -> None:
        cluster.model(path="")
        instance_id = cluster.place()
        node.carry_out()
        cluster.runner(IDLE, instance_id)
        node.carry_out()
        cluster.download()
        cluster.download(cause=self.LOST)
        node.view.fetching.clear()
        assert node.names() == []
        due = next_deadline(cluster.state, node.view)
        assert due == cluster.now + 0.5
        cluster.now = due
        assert node.carry_out() == ["FetchModel"]

    def test_one_that_was_given_up_is_not(self, cluster: Cluster, node: Node) -> None:
        cluster.model(path="")
        instance_id = cluster.place()
        node.carry_out()
        cluster.runner(IDLE, instance_id)
        cluster.download()
        cluster.download(cause=self.LOST, retryable=False)
        assert node.carry_out() == ["ShutDownRunner"]
        assert next_deadline(cluster.state, node.view) is None

    def test_one_that_is_due_and_that_nobody_wants_wakes_nobody(self, cluster: Cluster, node: Node) -> None:
        """The worker would run its plan again at once, for ever."""
        cluster.model(path="")
        cluster.place()
        node.carry_out()
        cluster.download()
        cluster.download(cause=self.LOST)
        cluster.now += 60
        assert node.names() == []
        assert next_deadline(cluster.state, node.view) is None

    def test_two_instances_of_a_model_fetch_it_once(self, cluster: Cluster, node: Node) -> None:
        cluster.model(path="")
        both = [cluster.place(), cluster.place()]
        node.carry_out()
        for instance_id in both:
            cluster.runner(IDLE, instance_id)
        assert node.carry_out() == ["FetchModel"]
        cluster.model(SMALL)
        assert node.carry_out() == ["LoadModel", "LoadModel"]
