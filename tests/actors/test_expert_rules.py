"""What the decider makes of load windows and of moving experts, given/when/then."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from support.cluster import KILLED, Cluster, node_started
from support.expert_commands import BROKEN, EPLB, EVEN, LATE, SKEWED
from support.experts import Mixture, names

from actors.decider import make_decider
from actors.deciding.balancing import digest
from events import catalogue as ev
from events import expert_events as xe
from events.experts import EplbSettings, StagedSlot
from events.status import Ready


@pytest.fixture
def mixture() -> Mixture:
    """An instance whose ranks are on their way."""
    return Mixture()


@pytest.fixture
def ready(mixture: Mixture) -> Mixture:
    mixture.all_ready()
    return mixture


@pytest.fixture
def moving(ready: Mixture) -> Mixture:
    """One with a migration just planned."""
    ready.planned()
    return ready


class TestFirstPlacement:
    def test_experts_are_placed_in_the_decision_that_places_the_instance(self, mixture: Mixture) -> None:
        *_, requested, experts, placed = mixture.history
        assert names([requested, experts, placed]) == ["InstanceRequested", "ExpertsPlaced", "InstancePlaced"]
        assert isinstance(experts, xe.ExpertsPlaced)
        assert (experts.epoch, experts.ranks, experts.experts) == (1, 2, 8)
        assert [len(layer) for layer in experts.maps] == [10, 10, 10]

    def test_without_eplb_there_is_no_event_of_it(self) -> None:
        mixture = Mixture()
        before = len(mixture.history)
        mixture.do(mixture.placing("Mixture-8x160M", shard_strategy="expert", ranks=2))
        assert names(mixture.history[before:]) == ["InstanceRequested", "InstancePlaced"]

    def test_what_was_learned_outlives_the_runners(self, moving: Mixture) -> None:
        moving.migrated()
        learned = moving.experts
        moving.runner(KILLED, runner_id=moving.runners[1])
        moving.now += 20
        assert names(moving.reconcile(moving.instance_id)) == ["InstancePlaced"]
        assert (moving.experts.epoch, moving.experts.maps) == (learned.epoch, learned.maps)
        assert moving.experts.epoch == 2

    def test_another_number_of_slots_takes_another_placement(self, moving: Mixture) -> None:
        moving.migrated()
        moving.runner(KILLED, runner_id=moving.runners[1])
        instance = moving.instance(moving.instance_id)
        eplb = EplbSettings(redundant_experts=4)
        settings = msgspec.structs.replace(instance.settings, eplb=eplb)
        moving.state.instances[moving.instance_id] = msgspec.structs.replace(instance, settings=settings)
        moving.now += 20
        experts, _ = moving.reconcile(moving.instance_id)
        assert isinstance(experts, xe.ExpertsPlaced)
        assert (experts.epoch, len(experts.maps[0])) == (3, 12)
        assert "10 slots on 2 ranks" in experts.reason

    def test_a_runner_with_eplb_is_not_adopted(self, ready: Mixture) -> None:
        placement = ready.instance(ready.instance_id).placement
        assert placement is not None
        ready.node_lost("node-a")
        ready.two_devices("run-2")
        refusal = ready.refused(ready.adopting(ready.instance_id, placement))
        assert "EPLB" in refusal.message


class TestLoadWindows:
    def test_rows_of_slots_become_rows_of_experts_and_ranks(self, ready: Mixture) -> None:
        (window,) = ready.window()
        assert isinstance(window, xe.LoadWindowClosed)
        assert window.experts == [[int(each) for each in SKEWED]] * 3
        assert window.ranks == [[9100, 400]] * 3
        load = ready.experts.load
        assert load is not None
        assert (load.window, load.tokens, load.experts) == (1, 4096, window.experts)

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"loads": [None, *EVEN[1:]]}, "window_not_a_number"),
            ({"loads": [-5.0, *EVEN[1:]]}, "window_negative"),
            ({"loads": [0.0] * 8}, "window_empty"),
            ({"epoch": 0}, "window_of_another_epoch"),
            ({"epoch": 7}, "window_of_another_epoch"),
            ({"counts": [[1.0] * 10]}, "window_shape"),
            ({"window": 0}, "window_repeated"),
        ],
    )
    def test_what_is_no_load_is_refused_by_an_event(
        self, ready: Mixture, changes: dict[str, Any], code: str
    ) -> None:
        (refused,) = ready.window(**changes)
        assert isinstance(refused, xe.LoadWindowRefused)
        assert refused.cause.code == code
        assert ready.experts.load is None

    def test_one_that_comes_twice_is_refused(self, ready: Mixture) -> None:
        report = ready.load()
        ready.do(report)
        assert names(ready.do(report)) == ["LoadWindowRefused"]

    def test_those_of_other_runners_change_nothing(self, ready: Mixture) -> None:
        assert ready.window(runner_id=ready.runners[1]) == []
        assert ready.window(runner_id="runner-of-old") == []
        assert ready.window(instance_id="instance-of-old") == []

    def test_those_of_an_instance_that_is_not_ready_change_nothing(self, mixture: Mixture) -> None:
        assert mixture.window() == []

    def test_new_runners_count_from_one(self, ready: Mixture) -> None:
        ready.window()
        ready.window()
        ready.runner(KILLED, runner_id=ready.runners[0])
        ready.now += 20
        ready.reconcile(ready.instance_id)
        ready.all_ready()
        assert names(ready.window(window=1)) == ["LoadWindowClosed"]

    def test_while_experts_move_they_are_recorded_and_not_weighed(self, moving: Mixture) -> None:
        assert names(moving.window()) == ["LoadWindowClosed"]
        assert moving.experts.load is None

    def test_between_a_commit_and_its_application_they_are_refused(self, moving: Mixture) -> None:
        """The map that they were counted under is not in the state any more."""
        moving.staged()
        (refused,) = moving.window()
        assert isinstance(refused, xe.LoadWindowRefused)
        assert refused.cause.code == "window_of_another_epoch"
        moving.applied()
        assert names(moving.window()) == ["LoadWindowClosed"]


class TestRebalance:
    def test_what_pays_is_adopted_and_planned_in_one_decision(self, ready: Mixture) -> None:
        ready.window()
        decided, planned = ready.rebalance()
        assert isinstance(decided, xe.RebalanceDecided)
        assert isinstance(planned, xe.MigrationPlanned)
        assert decided.adopted
        assert decided.balance.now < 0.6 < 0.75 < decided.balance.predicted <= decided.balance.bound
        assert decided.moves == sum(len(layer.moves) for layer in planned.layers) > 0
        assert "saves" in decided.reason
        assert planned.epoch == 2
        for layer in planned.layers:
            old, new = ready.experts.maps[layer.layer], layer.map
            assert {move.slot: move.expert for move in layer.moves} == {
                slot: new[slot] for slot in range(10) if old[slot] != new[slot]
            }
            assert all(old[move.source] == move.expert for move in layer.moves)

    def test_an_even_load_is_left_and_the_reason_is_told(self, ready: Mixture) -> None:
        ready.window(EVEN)
        (decided,) = ready.rebalance()
        assert isinstance(decided, xe.RebalanceDecided)
        assert not decided.adopted
        assert decided.reason
        assert ready.experts.weighed == 1
        assert ready.experts.load is None

    def test_too_few_tokens_are_no_ground(self, ready: Mixture) -> None:
        ready.window(tokens=3)
        (decided,) = ready.rebalance()
        assert isinstance(decided, xe.RebalanceDecided)
        assert "256" in decided.reason

    def test_a_window_is_weighed_once_and_only_the_last(self, ready: Mixture) -> None:
        ready.window(EVEN)
        ready.window(EVEN)
        assert ready.rebalance(1) == []
        assert names(ready.rebalance(2)) == ["RebalanceDecided"]
        assert ready.rebalance(2) == []

    def test_nothing_is_weighed_while_experts_move(self, moving: Mixture) -> None:
        moving.window()
        assert moving.rebalance() == []

    def test_another_policy_can_stand_in(self, ready: Mixture) -> None:
        ready.window()
        static = Mixture(make_decider(balancer="static"))
        static.all_ready()
        static.window()
        (decided,) = static.rebalance()
        assert isinstance(decided, xe.RebalanceDecided)
        assert (decided.policy, decided.adopted) == ("static", False)

    def test_one_that_is_not_there_is_left(self, ready: Mixture) -> None:
        ready.window()
        ready.delete(ready.instance_id)
        assert ready.rebalance(1) == []


class TestMigration:
    def test_all_layers_in_order_then_the_epoch_is_sealed(self, moving: Mixture) -> None:
        layers = [layer.layer for layer in moving.migration.layers]
        wanted = {layer.layer: layer.map for layer in moving.migration.layers}
        before = len(moving.history)
        moving.migrated()
        told = names(moving.history[before:])
        assert told == ["LayerStaged", "LayerCommitted", "LayerApplied"] * len(layers) + ["ExpertEpochSealed"]
        assert moving.experts.epoch == 2
        assert {layer: moving.experts.maps[layer] for layer in layers} == wanted

    def test_the_commit_is_in_the_decision_on_what_was_staged(self, moving: Mixture) -> None:
        _, committed = moving.staged()
        assert isinstance(committed, xe.LayerCommitted)
        assert committed.map == moving.at_hand.map == moving.experts.maps[committed.layer]
        assert moving.migration.stage == "committed"

    @pytest.mark.parametrize(
        "slots",
        [
            [],
            [StagedSlot(slot=0, sent="ab", staged="ab")],
        ],
        ids=["none", "others"],
    )
    def test_slots_other_than_planned_end_it(self, moving: Mixture, slots: list[StagedSlot]) -> None:
        maps = moving.experts.maps
        (aborted,) = moving.staged(slots=slots)
        assert isinstance(aborted, xe.MigrationAborted)
        assert (aborted.stage, aborted.cause.code) == ("staging", "wrong_slots")
        assert (moving.experts.migration, moving.experts.maps, moving.experts.epoch) == (None, maps, 1)

    def test_a_checksum_that_differs_ends_it(self, moving: Mixture) -> None:
        good = moving.staging().slots
        slots = [msgspec.structs.replace(good[0], staged="cd"), *good[1:]]
        (aborted,) = moving.staged(slots=slots)
        assert isinstance(aborted, xe.MigrationAborted)
        assert aborted.cause.code == "checksum_mismatch"
        assert str(good[0].slot) in aborted.cause.message

    def test_a_rank_that_could_not_ends_it(self, moving: Mixture) -> None:
        (aborted,) = moving.staged(slots=[], cause=BROKEN)
        assert isinstance(aborted, xe.MigrationAborted)
        assert aborted.cause == BROKEN

    def test_after_an_abort_the_next_window_may_try_again(self, moving: Mixture) -> None:
        moving.staged(slots=[], cause=BROKEN)
        moving.window()
        assert names(moving.rebalance()) == ["RebalanceDecided", "MigrationPlanned"]

    def test_later_layers_that_are_given_up_leave_the_committed_ones(self, moving: Mixture) -> None:
        first = moving.at_hand
        moving.staged()
        moving.applied()
        moving.staged(slots=[], cause=BROKEN)
        assert moving.experts.epoch == 2
        assert moving.experts.maps[first.layer] == first.map
        assert moving.instance(moving.instance_id).status == "ready"
        moving.window()
        _, planned = moving.rebalance()
        assert isinstance(planned, xe.MigrationPlanned)
        assert planned.epoch == 3

    def test_ranks_that_apply_something_else_are_set_back(self, moving: Mixture) -> None:
        moving.staged()
        committed = moving.experts.maps
        other = digest(list(reversed(moving.at_hand.map)), 8)
        good = moving.applying().digests[0]
        events = moving.applied(digests=[good, other])
        assert names(events) == ["MigrationAborted", "InstanceSetBack"]
        assert isinstance(events[1], ev.InstanceSetBack)
        assert events[1].cause.code == "digest_mismatch"
        assert "[1] of 2" in events[1].cause.message
        assert moving.experts.maps == committed, "it rolls forward"

    def test_equal_digests_of_another_map_do_not_pass(self, moving: Mixture) -> None:
        moving.staged()
        assert names(moving.applied(digests=["00", "00"])) == ["MigrationAborted", "InstanceSetBack"]

    def test_a_missing_rank_does_not_pass(self, moving: Mixture) -> None:
        moving.staged()
        digests = moving.applying().digests[:1]
        assert names(moving.applied(digests=digests)) == ["MigrationAborted", "InstanceSetBack"]

    @pytest.mark.parametrize(
        "changes",
        [
            {"runner_id": "runner-of-old"},
            {"migration_id": "migration-of-old"},
            {"layer": 99},
            {"instance_id": "instance-of-old"},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_reports_on_anything_but_the_layer_at_hand_change_nothing(
        self, moving: Mixture, changes: dict[str, Any]
    ) -> None:
        assert moving.staged(**changes) == []
        assert moving.applied() == [], "it is not committed"
        moving.staged()
        assert moving.applied(**changes) == []
        assert moving.staged() == [], "it is committed"


class TestDeadlines:
    def test_before_the_commit_it_is_given_up(self, moving: Mixture) -> None:
        moving.now += EPLB.stage_timeout_s
        (aborted,) = moving.expire()
        assert isinstance(aborted, xe.MigrationAborted)
        assert (aborted.stage, aborted.cause) == ("staging", LATE)
        assert moving.instance(moving.instance_id).status == "ready"

    def test_after_the_commit_the_ranks_are_started_anew(self, moving: Mixture) -> None:
        (task_id,) = moving.create(model_id="Mixture-8x160M")
        moving.staged()
        moving.now += EPLB.apply_timeout_s
        events = moving.expire()
        assert names(events) == ["TaskFailed", "MigrationAborted", "InstanceSetBack"]
        assert events[0].subject == task_id
        assert moving.experts.epoch == 2

    def test_too_early_or_about_another_layer_changes_nothing(self, moving: Mixture) -> None:
        moving.now += EPLB.stage_timeout_s - 0.1
        assert moving.expire() == []
        moving.now += 1
        assert moving.expire(layer=99) == []
        assert moving.expire(migration_id="migration-of-old") == []

    def test_a_deadline_of_staging_is_none_of_what_is_committed_meanwhile(self, moving: Mixture) -> None:
        command = moving.expiring()
        moving.now += EPLB.stage_timeout_s + 1
        moving.staged()
        assert moving.do(command) == []


@pytest.mark.parametrize("committed", [False, True], ids=["staging", "committed"])
class TestPlacementsThatBecomeVoid:
    """Whatever ends a placement ends its migration, in the same decision and before it."""

    def events(self, moving: Mixture, committed: bool, end: Any) -> list[str]:
        if committed:
            moving.staged()
        maps = moving.experts.maps
        events = end()
        (aborted,) = [each for each in events if isinstance(each, xe.MigrationAborted)]
        assert aborted.stage == ("committed" if committed else "staging")
        if moving.instance_id in moving.state.experts:
            assert moving.experts.maps == maps
            assert moving.experts.migration is None
        return names(events)

    def test_a_rank_dies(self, moving: Mixture, committed: bool) -> None:
        told = self.events(moving, committed, lambda: moving.runner(KILLED, runner_id=moving.runners[1]))
        assert told == ["RunnerStatusChanged", "MigrationAborted", "InstanceSetBack"]

    def test_it_is_given_up_after_too_many_attempts(self, moving: Mixture, committed: bool) -> None:
        instance = moving.instance(moving.instance_id)
        spent = msgspec.structs.replace(instance, attempts=3)
        moving.state.instances[moving.instance_id] = spent
        told = self.events(moving, committed, lambda: moving.runner(KILLED, runner_id=moving.runners[0]))
        assert told == ["RunnerStatusChanged", "MigrationAborted", "InstanceFailed"]

    def test_its_user_deletes_it(self, moving: Mixture, committed: bool) -> None:
        told = self.events(moving, committed, lambda: moving.delete(moving.instance_id))
        assert told == ["MigrationAborted", "InstanceDeleted"]
        assert moving.state.experts == {}

    def test_its_node_stops(self, moving: Mixture, committed: bool) -> None:
        told = self.events(moving, committed, moving.node_stops)
        assert told[-3:] == ["MigrationAborted", "InstanceSetBack", "NodeStopped"]

    def test_its_node_is_lost(self, moving: Mixture, committed: bool) -> None:
        told = self.events(moving, committed, lambda: moving.node_lost("node-a"))
        assert told[-3:] == ["MigrationAborted", "InstanceSetBack", "NodeStopped"]

    def test_its_node_died_and_is_started_again(self, moving: Mixture, committed: bool) -> None:
        told = self.events(moving, committed, lambda: moving.do(node_started("node-a", "run-2")))
        assert "InstanceSetBack" in told


def test_an_instance_without_experts_is_served_as_ever() -> None:
    cluster = Cluster()
    instance_id = cluster.served()
    assert cluster.state.experts == {}
    assert isinstance(cluster.state.runners[cluster.runner_of(instance_id)].status, Ready)


def test_a_node_without_eplb_imports_nothing_of_it() -> None:
    script = "import sys, actors.node; print([m for m in sys.modules if m.startswith('actors.eplb')])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
