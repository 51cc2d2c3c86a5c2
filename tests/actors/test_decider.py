"""Every rule of the decider as given, when, then."""

from __future__ import annotations

import pytest
from support.cards import HUGE, QUANTIZED, SMALL
from support.cluster import (
    FINISHED,
    GIB,
    KILLED,
    LIFE,
    NODE,
    NOTHING,
    POLICY,
    Cluster,
    device,
    engine,
)

from actors.decider import decide
from actors.deciding.instances import FINAL_CODES, QUIET_S, backoff
from actors.refusal import Rejected
from events import catalogue as ev
from events import commands as cmd
from events import status as st
from events.base import Event
from events.commands import Facts
from events.values import Cause

LOST = Cause(code="hub_unreachable", message="The hub did not answer.")


START = cmd.StartEpoch(command_id="e", node_id=NODE, incarnation="run-1")


def _facts(epoch: int) -> Facts:
    return Facts(now=1.0, seed="s", epoch=epoch, node_id=NODE)


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


class TestEpochs:
    def test_the_next_epoch_follows(self, cluster: Cluster) -> None:
        for epoch in (1, 2):
            (event,) = cluster.do(cmd.StartEpoch(command_id=f"e{epoch}", node_id=NODE, incarnation="run-1"))
            assert event == ev.EpochStarted(epoch=epoch, node_id=NODE, incarnation="run-1")
        assert cluster.state.master == NODE

    def test_numbers_that_others_promised_are_left_out(self, cluster: Cluster) -> None:
        (event,) = decide(cluster.state, START, _facts(epoch=7))
        assert event == ev.EpochStarted(epoch=7, node_id=NODE, incarnation="run-1")

    @pytest.mark.parametrize("epoch", [0, 2, 3])
    def test_one_that_is_not_later_is_refused(self, cluster: Cluster, epoch: int) -> None:
        for _ in range(3):
            cluster.do(START)
        with pytest.raises(Rejected) as refusal:
            decide(cluster.state, START, _facts(epoch=epoch))
        assert refusal.value.cause == Cause(
            code="stale_epoch", message=f"Epoch {epoch} can't follow epoch 3."
        )


class TestPlacing:
    def test_the_wish_and_its_placement_are_one_decision(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model()
        requested, placed = cluster.do(cluster.placing())
        assert isinstance(requested, ev.InstanceRequested)
        assert isinstance(placed, ev.InstancePlaced)
        assert [candidate.verdict for candidate in placed.candidates] == ["chosen"]
        instance = cluster.instance(requested.instance_id)
        assert instance.status == "placed"
        assert isinstance(cluster.state.runners[cluster.runner_of(instance.instance_id)].status, st.Spawning)

    def test_an_unknown_model_is_refused_with_those_that_are_known(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model()
        cause = cluster.refused(cluster.placing("Unheard-Of"))
        assert cause.code == "model_not_found"
        assert "'Unheard-Of'" in cause.message
        assert f"Known models: {SMALL.model_id}." in cause.message

    def test_one_that_fits_nowhere_is_refused_with_the_numbers(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model(HUGE)
        cause = cluster.refused(cluster.placing(HUGE.model_id))
        assert cause.code == "does_not_fit"
        assert "needs 15" in cause.message
        assert "16.00 GiB are free" in cause.message
        assert list(cause.detail) == [f"{NODE}/cpu:0/mlx"]

    def test_a_context_beyond_the_model_is_refused(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model()
        cause = cluster.refused(cluster.placing(context=8193))
        assert cause.code == "context_too_long"
        assert "8192" in cause.message
        assert "8193" in cause.message

    @pytest.mark.parametrize("wrong", [{"batch": 0}, {"context": -1}])
    def test_impossible_settings_are_refused(self, cluster: Cluster, wrong: dict[str, int]) -> None:
        cluster.node()
        cluster.model()
        cause = cluster.refused(cluster.placing(**wrong))
        assert cause.code == "invalid_settings"
        assert str(*wrong.values()) in cause.message

    def test_without_a_node_nothing_can_be_placed(self, cluster: Cluster) -> None:
        cluster.model()
        assert "no node is up" in cluster.refused(cluster.placing()).message


class TestRetries:
    def test_failures_back_off_double_and_end_in_a_state_that_says_why(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model()
        instance_id = cluster.place()
        waits = []
        for attempt in (1, 2, 3):
            assert kinds(cluster.runner(KILLED, instance_id)) == ["RunnerStatusChanged", "InstanceSetBack"]
            instance = cluster.instance(instance_id)
            assert (instance.status, instance.attempts) == ("waiting", attempt)
            waits.append(instance.retry_at - cluster.now)
            assert cluster.reconcile(instance_id) == [], "its time has not come"
            cluster.now = instance.retry_at
            assert kinds(cluster.reconcile(instance_id)) == ["InstancePlaced"]
        assert waits == [0.5, 1.0, 2.0]
        assert kinds(cluster.runner(KILLED, instance_id)) == ["RunnerStatusChanged", "InstanceFailed"]
        instance = cluster.instance(instance_id)
        assert (instance.status, instance.attempts, instance.cause) == ("failed", 4, KILLED.cause)
        assert cluster.reconcile(instance_id) == [], "it is left alone, and not deleted"

    def test_the_back_off_has_a_cap(self) -> None:
        assert [backoff(n, POLICY) for n in (1, 5, 6, 1000)] == [0.5, 8.0, 10.0, 10.0]

    @pytest.mark.parametrize("code", sorted(FINAL_CODES))
    def test_what_no_attempt_can_heal_fails_at_once(self, cluster: Cluster, code: str) -> None:
        cluster.node()
        cluster.model()
        instance_id = cluster.place()
        cluster.runner(LIFE[0], instance_id)
        failed = st.Failed(phase="Loading", cause=Cause(code=code, message="It can't be."))
        assert kinds(cluster.runner(failed, instance_id))[-1] == "InstanceFailed"

    def test_a_finished_task_resets_the_count(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        cluster.runner(KILLED, instance_id)
        cluster.now += 10
        cluster.reconcile(instance_id)
        assert cluster.ready(instance_id)
        assert cluster.instance(instance_id).attempts == 1
        cluster.ended(cluster.create()[0], FINISHED)
        assert cluster.instance(instance_id).attempts == 0

    @pytest.mark.parametrize(("quiet", "attempt"), [(QUIET_S - 1, 2), (QUIET_S, 1)])
    def test_quiet_time_resets_the_count(self, cluster: Cluster, quiet: float, attempt: int) -> None:
        instance_id = cluster.served()
        cluster.runner(KILLED, instance_id)
        cluster.now += 10
        cluster.reconcile(instance_id)
        cluster.ready(instance_id)
        cluster.now += quiet
        cluster.runner(KILLED, instance_id)
        assert cluster.instance(instance_id).attempts == attempt

    def test_a_placement_that_fits_nowhere_any_more_is_a_failed_attempt(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        cluster.runner(KILLED, instance_id)
        cluster.do(cmd.ReportResources(command_id="r", origin=NODE, memory_available=GIB // 4, disk_free=GIB))
        cluster.now += 10
        (event,) = cluster.reconcile(instance_id)
        assert isinstance(event, ev.InstanceSetBack)
        assert (event.cause.code, event.attempt) == ("does_not_fit", 2)

    def test_a_user_can_retry_what_failed_or_waits(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        cluster.runner(KILLED, instance_id)
        assert kinds(cluster.retry(instance_id)) == ["InstanceRetried"]
        instance = cluster.instance(instance_id)
        assert (instance.status, instance.attempts, instance.retry_at) == ("waiting", 0, cluster.now)
        assert kinds(cluster.reconcile(instance_id)) == ["InstancePlaced"]

    def test_a_user_can_not_retry_what_runs_or_is_not_there(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        retry = cmd.RetryInstance(command_id="r", instance_id=instance_id, by="a user")
        cause = cluster.refused(retry)
        assert cause.code == "not_failed"
        assert cause.message == f"{instance_id} is ready; there is nothing to retry."
        unknown = cmd.RetryInstance(command_id="r", instance_id="instance-x", by="a user")
        assert cluster.refused(unknown).code == "instance_not_found"


class TestRunners:
    def test_the_life_of_a_runner_makes_its_instance_ready(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model()
        instance_id = cluster.place()
        cluster.now += 7.0
        seen = [kinds(cluster.runner(status, instance_id)) for status in LIFE]
        assert seen == [["RunnerStatusChanged"]] * 5 + [["RunnerStatusChanged", "InstanceReady"]]
        assert cluster.history[-1] == ev.InstanceReady(instance_id=instance_id, load_s=7.0)
        runner = cluster.state.runners[cluster.runner_of(instance_id)]
        assert (runner.pid, runner.process_started_at) == (4242, 1.0)

    def test_progress_in_loading_is_recorded_in_quarters(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model()
        instance_id = cluster.place()
        recorded = [n for n in range(31) if cluster.runner(st.Loading(layers=n, total=30), instance_id)]
        assert recorded == [0, 7, 14, 21, 28, 30]

    def test_a_status_that_was_left_is_no_news(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        for late in LIFE:
            assert cluster.runner(late, instance_id) == []
        assert cluster.runner(st.Ready(), runner_id="runner-unheard-of") == []

    def test_the_end_of_a_runner_ends_its_tasks_and_its_placement(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        task_id, cancelled = cluster.create(2)
        cluster.cancel(cancelled)
        events = cluster.runner(KILLED, instance_id)
        assert kinds(events) == ["RunnerStatusChanged", "TaskFailed", "TaskCancelled", "InstanceSetBack"]
        assert events[1] == ev.TaskFailed(task_id=task_id, cause=KILLED.cause, usage=NOTHING)
        assert events[2] == ev.TaskCancelled(task_id=cancelled, reason="the client went away", usage=NOTHING)
        assert not cluster.state.runners

    def test_an_end_that_nobody_asked_for_is_a_failure(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        events = cluster.runner(st.Shutdown(), instance_id)
        assert kinds(events) == ["RunnerStatusChanged", "InstanceSetBack"]
        assert isinstance(events[1], ev.InstanceSetBack)
        assert events[1].cause.code == "runner_ended"

    def test_the_end_of_a_runner_of_a_void_placement_concerns_nobody(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        old = cluster.runner_of(instance_id)
        cluster.delete(instance_id)
        assert kinds(cluster.runner(st.ShuttingDown(), runner_id=old)) == ["RunnerStatusChanged"]
        assert kinds(cluster.runner(st.Shutdown(), runner_id=old)) == ["RunnerStatusChanged"]
        assert cluster.runner(KILLED, runner_id=old) == [], "it has one end"
        assert not cluster.state.runners


class TestNodes:
    def test_a_start_is_recorded_once(self, cluster: Cluster) -> None:
        assert kinds(cluster.node()) == ["NodeStarted"]
        assert cluster.node() == [], "the same incarnation again"

    @pytest.mark.parametrize("word", [True, False], ids=["goodbye", "death"])
    def test_a_lost_node_takes_its_runners_and_tasks_but_no_instance(
        self, cluster: Cluster, word: bool
    ) -> None:
        instance_id = cluster.served()
        coming = cluster.place()
        cluster.create(2)
        events = cluster.node_stops() if word else cluster.node(incarnation="run-2")
        assert kinds(events)[:7] == [
            *["RunnerStatusChanged"] * 2,
            *["TaskFailed"] * 2,
            *["InstanceSetBack"] * 2,
            "NodeStopped",
        ]
        assert kinds(events)[7:] == ([] if word else ["NodeStarted"])
        stopped = events[6]
        assert isinstance(stopped, ev.NodeStopped)
        assert (stopped.clean, stopped.cause.code) == (word, "node_stopped" if word else "node_died")
        assert cluster.state.runners == {}
        for each in (instance_id, coming):
            instance = cluster.instance(each)
            assert (instance.status, instance.attempts, instance.retry_at) == ("waiting", 0, cluster.now)

    def test_a_goodbye_of_an_earlier_start_comes_too_late(self, cluster: Cluster) -> None:
        cluster.node()
        assert cluster.node_stops(incarnation="run-0") == []
        assert cluster.node_stops(node_id="node-x") == []
        assert cluster.node_stops() != []
        assert cluster.node_stops() == []

    def test_only_what_ran_there_is_lost(self, cluster: Cluster) -> None:
        instance_id = cluster.served()
        cluster.node("node-b")
        cluster.node_stops("node-b")
        assert cluster.instance(instance_id).status == "ready"

    def test_a_start_gives_failed_instances_another_chance(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model()
        instance_id = cluster.place()
        cluster.runner(LIFE[0], instance_id)
        broken = st.Failed(phase="Loading", cause=Cause(code="weights_mismatch", message="Wrong weights."))
        cluster.runner(broken, instance_id)
        events = cluster.node(incarnation="run-2")
        assert events[-1] == ev.InstanceRetried(instance_id=instance_id, by=f"start of node {NODE}")

    def test_readings_are_recorded_where_they_matter(self, cluster: Cluster) -> None:
        def read(gib: float, disk: int) -> list[Event]:
            memory = int(gib * GIB)
            return cluster.do(
                cmd.ReportResources(command_id="r", origin=NODE, memory_available=memory, disk_free=disk)
            )

        assert read(8, 5) == [], "of a node that nobody knows"
        cluster.node()
        assert kinds(read(15.9, 5)) == ["NodeResourcesChanged"], "the first that knows the disk"
        assert read(14.5, 9) == []
        assert kinds(read(14.0, 0)) == ["NodeResourcesChanged"]
        assert read(14.0, 0) == [], "a full disk is no news every time"

    def test_crashes_of_actors_and_dead_letters(self, cluster: Cluster) -> None:
        fields = {"origin": NODE, "actor": "telemetry", "action": "restarted", "restarts": 2}
        crash = cmd.ReportActor(command_id="a", error="ValueError", **fields)  # type: ignore[arg-type]
        letters = cmd.ReportActor(command_id="b", error="Fetch", dead_letters=3, **fields)  # type: ignore[arg-type]
        assert kinds(cluster.do(crash)) == ["ActorFailed"]
        assert cluster.do(letters) == [
            ev.DeadLettersCounted(node_id=NODE, actor="telemetry", count=3, sample="Fetch")
        ]


class TestModels:
    def test_a_model_is_described_then_stored_then_gone(self, cluster: Cluster) -> None:
        cluster.node()
        assert kinds(cluster.model(path="")) == ["ModelDescribed"]
        assert cluster.model(path="") == []
        assert kinds(cluster.model()) == ["ModelStored"]
        assert cluster.model() == []
        assert cluster.model(path="") == [], "files at hand say more"
        gone = cmd.ReportModelGone(command_id="g", origin=NODE, model_id=SMALL.model_id)
        assert kinds(cluster.do(gone)) == ["ModelGone"]
        assert cluster.do(gone) == []

    def test_a_fetch_starts_moves_on_and_ends(self, cluster: Cluster) -> None:
        cluster.node()
        assert cluster.download() == [], "of a model that nobody knows"
        cluster.model(path="")
        assert kinds(cluster.download()) == ["DownloadStarted"]
        recorded = [n for n in range(101) if cluster.download(n, 100)]
        assert recorded == [*range(10, 101, 10)]
        cluster.model()
        assert cluster.state.downloads == {}

    def test_words_of_a_fetch_that_come_after_its_end_are_no_news(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model(path="")
        cluster.download()
        cluster.model()
        assert cluster.download(100, 100) == []
        assert cluster.download(cause=LOST) == []
        assert cluster.state.downloads == {}

    def test_a_failed_fetch_backs_off_and_is_tried_again(self, cluster: Cluster) -> None:
        cluster.node()
        cluster.model(path="")
        instance_id = cluster.place()
        for attempt, wait in ((1, 0.5), (2, 1.0), (3, 2.0)):
            (started,) = cluster.download()
            assert isinstance(started, ev.DownloadStarted)
            assert started.attempt == attempt
            (failed,) = cluster.download(cause=LOST)
            assert isinstance(failed, ev.DownloadFailed)
            assert (failed.attempt, failed.retry_at) == (attempt, cluster.now + wait)
            assert cluster.download(cause=LOST) == [], "it has failed once"
        cluster.download()
        assert kinds(cluster.download(cause=LOST)) == ["DownloadFailed", "InstanceFailed"]
        instance = cluster.instance(instance_id)
        assert instance.cause == Cause(code="download_failed", message=LOST.message)

    def test_a_fetch_that_can_not_succeed_fails_those_who_wait_and_no_others(self, cluster: Cluster) -> None:
        other = cluster.served()
        cluster.model(QUANTIZED, path="")
        waiting = cluster.place(QUANTIZED.model_id)
        cluster.download(model_id=QUANTIZED.model_id)
        cluster.download(cause=LOST, retryable=False, model_id=QUANTIZED.model_id)
        assert cluster.instance(waiting).status == "failed"
        assert cluster.instance(other).status == "ready"
        cluster.retry(waiting)
        cluster.reconcile(waiting)
        assert cluster.state.downloads == {}, "a new placement is a new try to fetch"


def test_the_same_case_is_decided_the_same_way() -> None:
    """Also with other hash seeds: `cuebook replay verify` relies on it."""
    first, second = Cluster(), Cluster()
    for cluster in (first, second):
        cluster.node(devices=[device(), device("metal:0")], engines=[engine(["cpu:0", "metal:0"])])
        cluster.model()
        cluster.ready(cluster.place())
        cluster.create(3)
        cluster.node(incarnation="run-2")
    assert first.history == second.history
