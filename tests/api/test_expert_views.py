"""What an instance shows of its experts: epoch, balance, and the migration that is open."""

from __future__ import annotations

from support.experts import Mixture

from api.instance_views import ExpertsView, instance_view
from api.state_view import state_view


def shown(mixture: Mixture) -> ExpertsView:
    view = instance_view(mixture.state, mixture.instance(mixture.instance_id)).experts
    assert view is not None
    return view


def test_experts_as_placed_have_an_epoch_and_no_balance_yet() -> None:
    mixture = Mixture()
    view = shown(mixture)
    assert (view.epoch, view.ranks, view.layers, view.experts, view.slots) == (1, 2, 3, 8, 10)
    assert (view.balance, view.migration) == (None, None)


def test_an_open_migration_shows_how_far_it_is() -> None:
    mixture = Mixture()
    mixture.planned()
    view = shown(mixture)
    assert view.migration is not None
    assert (view.epoch, view.migration.epoch, view.migration.stage) == (1, 2, "staging")
    assert (view.migration.done, view.migration.layer) == (0, mixture.at_hand.layer)
    total = view.migration.total
    mixture.staged()
    committed = shown(mixture).migration
    assert committed is not None
    assert (committed.stage, committed.done, shown(mixture).epoch) == ("committed", 0, 2)
    mixture.applied()
    following = shown(mixture).migration
    assert (following.done if following else total) == 1
    assert view.balance is not None
    assert view.balance.predicted > view.balance.now


def test_the_state_shows_the_maps() -> None:
    mixture = Mixture()
    assert state_view(mixture.state).experts[mixture.instance_id].maps == mixture.experts.maps
