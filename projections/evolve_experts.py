"""How events of expert placement change `ClusterState`; a part of `projections.evolve`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from events import expert_events as ev
from events.base import Event
from projections.state import ClusterState, Experts, LoadReading, Migration

_replace = msgspec.structs.replace


def new_runners(state: ClusterState, instance_id: str) -> None:
    """An instance was placed: its runners count their load windows from 1 again."""
    experts = state.experts.get(instance_id)
    if experts is not None:
        state.experts[instance_id] = _replace(experts, window=0, weighed=0, load=None)


def _experts_placed(state: ClusterState, event: ev.ExpertsPlaced, at: float) -> None:
    state.experts[event.instance_id] = Experts(
        instance_id=event.instance_id,
        epoch=event.epoch,
        ranks=event.ranks,
        experts=event.experts,
        maps=event.maps,
    )


def _load_window_closed(state: ClusterState, event: ev.LoadWindowClosed, at: float) -> None:
    experts = state.experts[event.instance_id]
    load = LoadReading(
        window=event.window,
        epoch=event.epoch,
        steps=event.steps,
        tokens=event.tokens,
        seconds=event.seconds,
        bandwidth=event.bandwidth,
        experts=event.experts,
    )
    # What ran while experts were on their way says little about where they will be.
    weighable = load if experts.migration is None else None
    state.experts[event.instance_id] = _replace(experts, window=event.window, load=weighable)


def _rebalance_decided(state: ClusterState, event: ev.RebalanceDecided, at: float) -> None:
    experts = state.experts[event.instance_id]
    state.experts[event.instance_id] = _replace(
        experts, weighed=event.window, load=None, balance=event.balance
    )


def _migration_planned(state: ClusterState, event: ev.MigrationPlanned, at: float) -> None:
    migration = Migration(
        migration_id=event.migration_id,
        epoch=event.epoch,
        layers=event.layers,
        position=0,
        stage="staging",
        since=at,
    )
    _migrate(state, event.instance_id, migration)


def _layer_committed(state: ClusterState, event: ev.LayerCommitted, at: float) -> None:
    experts, migration = _open(state, event.instance_id)
    maps = [event.map if layer == event.layer else known for layer, known in enumerate(experts.maps)]
    state.experts[event.instance_id] = _replace(
        experts,
        epoch=event.epoch,
        maps=maps,
        migration=_replace(migration, stage="committed", since=at),
    )


def _layer_applied(state: ClusterState, event: ev.LayerApplied, at: float) -> None:
    _, migration = _open(state, event.instance_id)
    following = migration.position + 1
    if following < len(migration.layers):
        _migrate(state, event.instance_id, _replace(migration, position=following, stage="staging", since=at))


def _migration_over(
    state: ClusterState, event: ev.MigrationAborted | ev.ExpertEpochSealed, at: float
) -> None:
    _migrate(state, event.instance_id, None)


def _migrate(state: ClusterState, instance_id: str, migration: Migration | None) -> None:
    state.experts[instance_id] = _replace(state.experts[instance_id], migration=migration)


def _open(state: ClusterState, instance_id: str) -> tuple[Experts, Migration]:
    experts = state.experts[instance_id]
    assert experts.migration is not None  # layers are committed and applied within a migration only
    return experts, experts.migration


def _nothing(state: ClusterState, event: Event, at: float) -> None:
    """For events that are history only."""


EVOLVE: dict[type[Event], Callable[[ClusterState, Any, float], object]] = {
    ev.ExpertsPlaced: _experts_placed,
    ev.LoadWindowClosed: _load_window_closed,
    ev.LoadWindowRefused: _nothing,
    ev.RebalanceDecided: _rebalance_decided,
    ev.MigrationPlanned: _migration_planned,
    ev.LayerStaged: _nothing,
    ev.LayerCommitted: _layer_committed,
    ev.LayerApplied: _layer_applied,
    ev.MigrationAborted: _migration_over,
    ev.ExpertEpochSealed: _migration_over,
}
