"""What is said of experts that move: by rank 0, and by the controller."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
from support.cards import MIXTURE

from actors.deciding.balancing import digest
from events import expert_commands as cmd
from events.base import Command
from events.experts import EplbSettings, LayerMoves, StagedSlot
from events.values import Cause, Policy
from projections.state import Experts, Migration

CARD = msgspec.structs.replace(MIXTURE, n_moe_layers=3)
"""A mixture with 8 experts in each of 3 layers."""
EPLB = EplbSettings(redundant_experts=2, stage_timeout_s=5.0, apply_timeout_s=3.0)
SKEWED = [100.0, 100.0, 3000.0, 100.0, 3000.0, 100.0, 3000.0, 100.0]
"""Rows of each expert. As they are first placed, rank 0 has the three that most of it goes to."""
EVEN = [1000.0] * 8
BROKEN = Cause(code="stage_failed", message="A rank could not stage the layer.")
LATE = Cause(code="deadline_missed", message="The layer was not there in time.")


def load(
    command_id: str,
    origin: str,
    runner_id: str,
    experts: Experts,
    rows: Sequence[float | None],
    /,
    **changes: Any,
) -> cmd.ReportExpertLoad:
    """A load window with these rows of each expert, in every layer."""
    fields = {
        "instance_id": experts.instance_id,
        "runner_id": runner_id,
        "window": experts.window + 1,
        "epoch": experts.epoch,
        "phase": "all",
        "steps": 100,
        "tokens": 4096,
        "seconds": 2.0,
        "bandwidth": 1e9,
        "counts": [[_part(rows[e], layer.count(e)) for e in layer] for layer in experts.maps],
    }
    return cmd.ReportExpertLoad(command_id=command_id, origin=origin, **(fields | changes))  # type: ignore[arg-type]


def _part(rows: float | None, copies: int) -> float | None:
    """What one of an expert's copies computed."""
    return None if rows is None else rows / copies


def staged(
    command_id: str, origin: str, runner_id: str, experts: Experts, /, **changes: Any
) -> cmd.ReportLayerStaged:
    """The layer at hand is staged as it should be."""
    slots = [StagedSlot(slot=move.slot, sent="ab", staged="ab") for move in at_hand(experts).moves]
    fields = {**_named(experts), "runner_id": runner_id, "slots": slots, "bytes": 4096, "seconds": 0.02}
    return cmd.ReportLayerStaged(command_id=command_id, origin=origin, **(fields | changes))


def applied(
    command_id: str, origin: str, runner_id: str, experts: Experts, policy: Policy, /, **changes: Any
) -> cmd.ReportLayerApplied:
    """The layer at hand is applied as it should be."""
    digests = [digest(at_hand(experts).map, experts.experts)] * experts.ranks
    fields = {
        **_named(experts),
        "runner_id": runner_id,
        "digests": digests,
        "seconds": 0.02,
        "policy": policy,
    }
    return cmd.ReportLayerApplied(command_id=command_id, origin=origin, **(fields | changes))


def expired(command_id: str, experts: Experts, policy: Policy, /, **changes: Any) -> cmd.ExpireMigration:
    """The layer at hand missed its deadline."""
    fields = {**_named(experts), "cause": LATE, "policy": policy}
    return cmd.ExpireMigration(command_id=command_id, **(fields | changes))


def migration(experts: Experts) -> Migration:
    """The one that is open."""
    assert experts.migration is not None
    return experts.migration


def at_hand(experts: Experts) -> LayerMoves:
    """The layer of the open migration that is to be staged or applied."""
    return migration(experts).layers[migration(experts).position]


def any_of(random: Random, command_id: str, origin: str, runner_id: str, experts: Experts) -> Command:
    """What may be said next; now and then what should not be."""
    said = command_id, origin, runner_id, experts
    policy, wrong = Policy(max_instance_retries=2), random.random() < 0.1
    if experts.migration is None or random.random() < 0.1:
        if experts.load is not None:
            return cmd.Rebalance(
                command_id=command_id, instance_id=experts.instance_id, window=experts.load.window
            )
        hot = random.randrange(8)
        rows = [None] * 8 if wrong else [5000.0 if each == hot else 300.0 for each in range(8)]
        return load(*said, rows, epoch=experts.epoch - (random.random() < 0.1))
    if random.random() < 0.05:
        return expired(command_id, experts, policy)
    if experts.migration.stage == "staging":
        return staged(*said, cause=BROKEN if wrong else None)
    return applied(*said, policy, digests=["00", "01"]) if wrong else applied(*said, policy)


def _named(experts: Experts) -> dict[str, Any]:
    return {
        "instance_id": experts.instance_id,
        "migration_id": migration(experts).migration_id,
        "layer": at_hand(experts).layer,
    }
