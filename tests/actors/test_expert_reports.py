"""What the runner of rank 0 says of experts, as the decider gets it."""

from __future__ import annotations

import pytest
from support.cluster import NODE, POLICY
from support.expert_commands import BROKEN
from support.experts import Mixture, names

from actors.expert_reports import ExpertWord, report_of
from engines import wire


@pytest.fixture
def mixture() -> Mixture:
    mixture = Mixture()
    mixture.all_ready()
    return mixture


def told(mixture: Mixture, word: ExpertWord) -> list[str]:
    """The events that come of a word of rank 0."""
    placement = mixture.instance(mixture.instance_id).placement
    assert placement is not None
    return names(mixture.do(report_of(word, NODE, mixture.instance_id, placement, POLICY)))


def window(mixture: Mixture) -> wire.ExpertLoad:
    load = mixture.load()
    return wire.ExpertLoad(
        window=load.window,
        epoch=load.epoch,
        steps=load.steps,
        tokens=load.tokens,
        seconds=load.seconds,
        bandwidth=load.bandwidth,
        counts=load.counts,
    )


def test_a_window_then_a_migration(mixture: Mixture) -> None:
    assert told(mixture, window(mixture)) == ["LoadWindowClosed"]
    mixture.rebalance()
    id, layer = mixture.migration.migration_id, mixture.at_hand.layer
    slots = mixture.staging().slots
    staged = wire.LayerStaged(migration_id=id, layer=layer, slots=slots, bytes=7, seconds=0.1)
    assert told(mixture, staged) == ["LayerStaged", "LayerCommitted"]
    digests = mixture.applying().digests
    applied = wire.LayerApplied(migration_id=id, layer=layer, digests=digests, seconds=0.1)
    assert told(mixture, applied) == ["LayerApplied"]


def test_a_layer_that_could_not_be_staged(mixture: Mixture) -> None:
    told(mixture, window(mixture))
    mixture.rebalance()
    failed = wire.LayerStaged(
        migration_id=mixture.migration.migration_id, layer=mixture.at_hand.layer, cause=BROKEN
    )
    assert told(mixture, failed) == ["MigrationAborted"]
