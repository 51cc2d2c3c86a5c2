"""The decider's rules about tasks and the deletion of instances as given, when, then."""

from __future__ import annotations

import itertools

import pytest
from support.cards import SMALL
from support.cluster import (
    FINISHED,
    KILLED,
    LIFE,
    NODE,
    USAGE,
    Cluster,
    node_started,
)

from actors.deciding.tasks import MAX_OPEN_TASKS
from events import catalogue as ev
from events import commands as cmd
from events import status as st
from events.values import Cause

LOST = Cause(code="hub_unreachable", message="The hub did not answer.")
TERMINAL = ev.TaskFinished | ev.TaskFailed | ev.TaskCancelled


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


class TestTasks:
    def test_a_request_makes_its_tasks_on_the_least_busy_instance(self, cluster: Cluster) -> None:
        first = cluster.served()
        second = cluster.ready(cluster.place())
        chosen = []
        for _ in range(4):
            (task_id,) = cluster.create()
            chosen.append(cluster.state.tasks[task_id].instance_id)
        assert sorted(chosen[:2]) == sorted([first, second])
        assert cluster.state.open_tasks == {first: 2, second: 2}

    def test_seeds_come_from_the_client_or_are_drawn(self, cluster: Cluster) -> None:
        cluster.served()
        given = [cluster.state.tasks[task].sampling.seed for task in cluster.create(3, seed=40)]
        assert given == [40, 41, 42]
        drawn = [cluster.state.tasks[task].sampling.seed for task in cluster.create(3)]
        assert len(set(drawn)) == 3
        assert all(0 <= seed < 2**31 for seed in drawn)

    def test_seeds_after_the_largest_one_begin_at_0(self, cluster: Cluster) -> None:
        """A client's -1 is the largest seed; the next one would be more than projections.db can hold."""
        cluster.served()
        given = [cluster.state.tasks[task].sampling.seed for task in cluster.create(3, seed=2**63 - 1)]
        assert given == [2**63 - 1, 0, 1]

    def test_no_instance_of_the_model(self, cluster: Cluster) -> None:
        cluster.node()
        cause = cluster.refused(cluster.creating())
        assert cause.code == "model_not_running"
        assert f"cuebook place {SMALL.model_id}" in cause.message

    def test_no_such_instance(self, cluster: Cluster) -> None:
        cluster.served()
        cause = cluster.refused(cluster.creating(instance_id="instance-x"))
        assert cause.code == "instance_not_found"
        assert "'instance-x'" in cause.message

    def test_an_instance_on_its_way_is_worth_waiting_for(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model()
        failing = cluster.place()
        cluster.runner(LIFE[0], failing)
        broken = st.Failed(phase="Loading", cause=Cause(code="weights_mismatch", message="Wrong weights."))
        cluster.runner(broken, failing)
        cause = cluster.refused(cluster.creating())
        assert cause.code == "instance_not_ready"
        assert "is failed, not ready" in cause.message
        assert "The last trouble was: Wrong weights." in cause.message
        assert "retry_after" not in cause.detail
        coming = cluster.place()
        cause = cluster.refused(cluster.creating())
        assert f"{coming} of {SMALL.model_id} is placed" in cause.message
        assert cause.detail["retry_after"] == 2

    def test_more_tokens_than_the_context(self, cluster: Cluster) -> None:
        cluster.served()
        assert cluster.create(max_tokens=511)
        cause = cluster.refused(cluster.creating(max_tokens=512))
        assert cause.code == "context_length_exceeded"
        assert "512 tokens here" in cause.message

    def test_too_many_at_once(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        cluster.create(MAX_OPEN_TASKS - 1)
        cause = cluster.refused(cluster.creating(2))
        assert cause.code == "overloaded"
        assert f"{instance_id} has {MAX_OPEN_TASKS - 1} open tasks" in cause.message
        assert cause.detail == {"retry_after": 5}
        assert cluster.create(1)

    def test_each_end_that_a_runner_can_report(self, cluster: Cluster) -> None:
        cluster.served()
        done, broken, dropped, unasked = cluster.create(4)
        cluster.cancel(dropped)
        cause = Cause(code="invalid_prompt", message="No messages.")
        assert cluster.ended(done, FINISHED) == [
            ev.TaskFinished(task_id=done, finish_reason="stop", usage=USAGE, timings=FINISHED.timings)
        ]
        assert cluster.ended(broken, cmd.Broken(cause=cause, usage=USAGE)) == [
            ev.TaskFailed(task_id=broken, cause=cause, usage=USAGE)
        ]
        assert cluster.ended(dropped, cmd.Stopped(usage=USAGE)) == [
            ev.TaskCancelled(task_id=dropped, reason="the client went away", usage=USAGE)
        ]
        assert cluster.ended(unasked, cmd.Stopped(usage=USAGE)) == [
            ev.TaskCancelled(task_id=unasked, reason="the runner dropped it", usage=USAGE)
        ]
        assert cluster.state.tasks == {}

    def test_cancelling_twice_or_too_late_does_nothing(self, cluster: Cluster) -> None:
        cluster.served()
        first, second = cluster.create(2)
        cluster.ended(second, FINISHED)
        events = cluster.cancel(first, first, second, "task-x")
        assert events == [ev.TaskCancelRequested(task_id=first, reason="the client went away")]
        assert cluster.cancel(first) == []

    ENDINGS = ("done", "broken", "dropped", "cancel", "killed", "deleted", "died")

    @pytest.mark.parametrize("order", list(itertools.permutations(ENDINGS, 3)))
    def test_a_task_has_one_end_whatever_comes_first(self, cluster: Cluster, order: tuple[str, ...]) -> None:
        instance_id = cluster.served()
        (task_id,) = cluster.create()
        runner_id = cluster.runner_of(instance_id)
        for ending in (*order, *order):
            _end(cluster, ending, instance_id, task_id, runner_id)
        ends = [e for e in cluster.history if isinstance(e, TERMINAL) and e.task_id == task_id]
        assert len(ends) == 1
        assert cluster.state.tasks == {}
        assert cluster.state.open_tasks == {}


def _end(cluster: Cluster, ending: str, instance_id: str, task_id: str, runner_id: str) -> None:
    match ending:
        case "done":
            cluster.ended(task_id, FINISHED)
        case "broken":
            cluster.ended(task_id, cmd.Broken(cause=LOST, usage=USAGE))
        case "dropped":
            cluster.ended(task_id, cmd.Stopped(usage=USAGE))
        case "cancel":
            cluster.cancel(task_id)
        case "killed":
            cluster.runner(KILLED, runner_id=runner_id)
        case "deleted":
            if instance_id in cluster.state.instances:
                cluster.delete(instance_id)
        case _:
            cluster.do(node_started(NODE, f"run-{cluster.state.seq}"))


class TestDeleting:
    def test_open_tasks_fail_and_the_runner_is_let_go(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        runner_id = cluster.runner_of(instance_id)
        (task_id,) = cluster.create()
        failed, deleted = cluster.delete(instance_id)
        assert isinstance(failed, ev.TaskFailed)
        assert (failed.task_id, failed.cause.code) == (task_id, "instance_deleted")
        assert deleted == ev.InstanceDeleted(instance_id=instance_id)
        assert not cluster.state.runners[runner_id].current

    def test_only_what_is_there(self, cluster: Cluster) -> None:
        cause = cluster.refused(cmd.DeleteInstance(command_id="d", instance_id="instance-x"))
        assert cause.code == "instance_not_found"
        assert cause.message == "There is no instance 'instance-x'; GET /instance lists those that are."
