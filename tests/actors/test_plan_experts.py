"""The worker of rank 0 moves experts as the log says: each order once, and the ranks load what holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster import KILLED, LIFE
from support.expert_commands import BROKEN, CARD, EPLB
from support.experts import Mixture
from support.planned import Node

from actors import orders
from actors import plan as p
from actors.settings import Settings
from engines import wire
from events import status as st


class Worker(Node):
    """The one worker of a mixture's node."""

    def __init__(self, cluster: Mixture) -> None:
        super().__init__(cluster)
        self.mixture = cluster

    def serves(self) -> None:
        """Both ranks are brought up as the plan says."""
        for status in (LIFE[0], st.Connecting(), st.Connected(), *LIFE[1:]):
            self.carry_out()
            for runner_id in self.mixture.runners:
                self.mixture.runner(status, runner_id=runner_id)
        assert self.carry_out() == []

    @property
    def leader(self) -> p.LocalRunner:
        return self.view.runners[self.mixture.runners[0]]


@pytest.fixture
def worker() -> Worker:
    """One whose instance is ready, with a migration just planned."""
    worker = Worker(Mixture())
    worker.serves()
    worker.mixture.window()
    worker.mixture.rebalance()
    return worker


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=str(tmp_path))


def test_a_layer_is_staged_once_then_applied_once_then_the_next(worker: Worker) -> None:
    for _ in worker.mixture.migration.layers:
        assert worker.carry_out() == ["StageExperts"]
        worker.mixture.staged()
        assert worker.carry_out() == ["ApplyExperts"]
        worker.mixture.applied()
    assert worker.names() == []
    assert worker.leader.maps == worker.mixture.experts.maps


def test_the_orders_say_what_the_log_says(worker: Worker) -> None:
    (stage,) = worker.steps()
    assert isinstance(stage, p.StageExperts)
    at_hand = worker.mixture.at_hand
    migration_id = worker.mixture.migration.migration_id
    assert orders.move(stage) == wire.StageLayer(migration_id=migration_id, moves=at_hand)
    worker.carry_out()
    worker.mixture.staged()
    (apply,) = worker.steps()
    assert isinstance(apply, p.ApplyExperts)
    assert orders.move(apply) == wire.ApplyLayer(
        migration_id=migration_id, layer=at_hand.layer, epoch=2, map=at_hand.map
    )


def test_what_is_given_up_is_dropped_once(worker: Worker) -> None:
    worker.carry_out()
    worker.mixture.staged(slots=[], cause=BROKEN)
    (drop,) = worker.steps()
    assert isinstance(drop, p.DropStaging)
    assert isinstance(orders.move(drop), wire.DropStaging)
    assert worker.carry_out() == ["DropStaging"]


def test_what_is_given_up_is_dropped_before_the_next_is_staged(worker: Worker) -> None:
    worker.carry_out()
    worker.mixture.staged(slots=[], cause=BROKEN)
    worker.mixture.window()
    worker.mixture.rebalance()
    assert worker.names() == ["DropStaging"]
    worker._do(worker.steps()[0])
    assert worker.carry_out() == ["StageExperts"]


def test_what_was_given_up_before_it_was_staged_is_not_dropped(worker: Worker) -> None:
    worker.mixture.staged(slots=[], cause=BROKEN)
    assert worker.names() == []


def test_ranks_that_compute_by_what_the_log_has_lost_are_stopped(worker: Worker) -> None:
    """As after a partition: they load what holds instead."""
    worker.leader.maps[0] = list(reversed(worker.leader.maps[0]))
    worker.mixture.staged(slots=[], cause=BROKEN)
    assert worker.carry_out() == ["ShutDownRunner"]


def test_a_layer_that_was_applied_and_whose_commit_is_lost_is_not_staged_again(worker: Worker) -> None:
    """Its slots hold other experts than the moves name."""
    mixture = worker.mixture
    before = mixture.experts
    worker.carry_out()
    mixture.staged()
    worker.carry_out()
    mixture.state.experts[mixture.instance_id] = before
    assert worker.carry_out() == ["ShutDownRunner"]


def test_the_other_ranks_get_no_orders(worker: Worker) -> None:
    (step,) = worker.steps()
    assert isinstance(step, p.StageExperts)
    assert step.runner_id == worker.mixture.runners[0]
    assert worker.view.runners[worker.mixture.runners[1]].staging is None


def test_new_runners_load_the_maps_that_are_committed(worker: Worker, settings: Settings) -> None:
    mixture = worker.mixture
    worker.carry_out()
    mixture.staged()
    committed = mixture.experts.maps
    killed = mixture.runners[1]
    mixture.runner(KILLED, runner_id=killed)
    worker.view.runners[killed].ready = False  # the worker heard of its end
    assert worker.names() == ["ShutDownRunner", "ShutDownRunner"]
    worker.view.runners.clear()
    mixture.now += 20
    mixture.reconcile(mixture.instance_id)
    shards = [orders.load(step, settings, "/m").experts for step in _loads(worker)]
    assert len(shards) == 2
    for shard in shards:
        assert shard is not None
        assert (shard.epoch, shard.maps, shard.slots, shard.eplb) == (2, committed, 10, EPLB)
    assert worker.leader.maps == committed


def test_without_eplb_the_shard_has_no_maps(settings: Settings) -> None:
    mixture = Mixture()
    mixture.delete(mixture.instance_id)
    mixture.instance_id = mixture.place_mixture(eplb=None)
    worker = Worker(mixture)
    for step in _loads(worker):
        load = orders.load(step, settings, "/m")
        assert load.experts is not None
        assert (load.experts.slots, load.experts.maps, load.experts.eplb) == (CARD.n_experts, [], None)
        assert load.device_id == step.rank.device_id


def test_ranks_join_a_group_that_shares_experts(settings: Settings) -> None:
    worker = Worker(Mixture())
    worker.carry_out()
    for runner_id in worker.mixture.runners:
        worker.mixture.runner(LIFE[0], runner_id=runner_id)
    (first,) = [step for step in worker.steps() if isinstance(step, p.ConnectRunner)]
    group = orders.connect(first, settings).group
    assert (group.strategy, group.device_id) == ("expert", first.rank.device_id)


def _loads(worker: Worker) -> list[p.LoadModel]:
    """The orders to load that bringing the ranks up takes."""
    for status in (LIFE[0], st.Connecting(), st.Connected()):
        worker.carry_out()
        for runner_id in worker.mixture.runners:
            worker.mixture.runner(status, runner_id=runner_id)
    found = [step for step in worker.steps() if isinstance(step, p.LoadModel)]
    worker.carry_out()
    return found
