"""Experts of instances with the load balancer (EPLB): first placement, load, and the migration of experts.

A migration goes layer by layer: staged on all ranks, committed here, applied by all ranks. Before its commit
a layer can be given up and nothing has changed; after it only forward: ranks that can't follow are set back
and load what the log says. Who reports on another migration, layer or runner than the one at hand is late
and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from actors.deciding.ends import abort, end_service
from actors.deciding.instances import set_back
from events import expert_commands as cmd
from events import expert_events as ev
from events.base import Event
from events.commands import Facts
from events.experts import EplbPolicy, EplbSettings, LayerMoves, MigrationStage
from events.ids import drawn
from events.values import Cause
from projections.state import ClusterState, Experts, Instance, Migration

if TYPE_CHECKING:
    from actors.deciding.balancing import Weighed


class _Served(NamedTuple):
    """An instance that is served with EPLB."""

    instance: Instance
    experts: Experts
    eplb: EplbSettings
    leader: str
    """The runner of rank 0, which speaks for all ranks."""


class _AtHand(NamedTuple):
    """The layer of an open migration that has to be staged or applied next."""

    served: _Served
    migration: Migration

    @property
    def moves(self) -> LayerMoves:
        return self.migration.layers[self.migration.position]

    @property
    def last(self) -> bool:
        return self.migration.position == len(self.migration.layers) - 1


def load(state: ClusterState, command: cmd.ReportExpertLoad, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Take a load window, or refuse one whose numbers are none or of another placement."""
    served = _served(state, command.instance_id)
    if served is None or served.leader != command.runner_id:
        return []
    from actors.deciding import balancing

    window = balancing.read_window(served.experts, command)
    if isinstance(window, Cause):
        refused = ev.LoadWindowRefused(
            instance_id=command.instance_id, window=command.window, epoch=command.epoch, cause=window
        )
        return [refused]
    return [window]


def rebalance(
    state: ClusterState, command: cmd.Rebalance, facts: Facts, policy: EplbPolicy | None = None
) -> list[Event]:
    """Weigh what the policy proposes for the last window; where it pays, plan the migration.

    ``policy`` stands in for the instance's own. A window that is weighed already, or not the last, is left.
    """
    served = _served(state, command.instance_id)
    if served is None or served.experts.migration is not None:
        return []
    experts = served.experts
    if experts.load is None or experts.load.window != command.window:
        return []
    from actors.deciding import balancing

    card = state.models[served.instance.model_id].card
    assert served.instance.placement is not None
    weighed = balancing.weigh(experts, experts.load, card, served.instance.placement, policy)
    decided: list[Event] = [_decided(experts, experts.load.window, weighed)]
    return decided + ([_planned(experts, weighed, facts)] if weighed.adopted else [])


def _decided(experts: Experts, window: int, weighed: Weighed) -> Event:
    return ev.RebalanceDecided(
        instance_id=experts.instance_id,
        window=window,
        epoch=experts.epoch,
        policy=weighed.policy,
        policy_version=weighed.policy_version,
        balance=weighed.balance,
        layers=len(weighed.layers),
        moves=weighed.moves,
        bytes_total=weighed.bytes_total,
        bytes_busiest=weighed.bytes_busiest,
        saving_s=weighed.saving_s,
        cost_s=weighed.cost_s,
        adopted=weighed.adopted,
        reason=weighed.reason,
    )


def _planned(experts: Experts, weighed: Weighed, facts: Facts) -> Event:
    return ev.MigrationPlanned(
        instance_id=experts.instance_id,
        migration_id=drawn("migration", facts.seed),
        epoch=experts.epoch + 1,
        layers=weighed.layers,
    )


def staged(state: ClusterState, command: cmd.ReportLayerStaged, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Commit a layer that arrived whole on all ranks; give the migration up where one did not."""
    at_hand = _reported(state, command, "staging")
    if at_hand is None:
        return []
    cause = command.cause or _wrong(at_hand.moves, command)
    if cause is not None:
        return abort(state, command.instance_id, cause)
    return [
        ev.LayerStaged(
            instance_id=command.instance_id,
            migration_id=command.migration_id,
            layer=command.layer,
            slots=len(command.slots),
            bytes=command.bytes,
            seconds=command.seconds,
        ),
        ev.LayerCommitted(
            instance_id=command.instance_id,
            migration_id=command.migration_id,
            layer=command.layer,
            epoch=at_hand.migration.epoch,
            map=at_hand.moves.map,
        ),
    ]


def _wrong(moves: LayerMoves, command: cmd.ReportLayerStaged) -> Cause | None:
    """What is wrong with the staged slots: others than planned, or other bytes than were sent."""
    planned = sorted(move.slot for move in moves.moves)
    arrived = sorted(slot.slot for slot in command.slots)
    if arrived != planned:
        return Cause(
            code="wrong_slots",
            message=f"Slots {arrived} of layer {moves.layer} were staged, and {planned} were to be. "
            "Nothing was changed.",
            detail={"layer": moves.layer},
        )
    broken = [slot.slot for slot in command.slots if slot.sent != slot.staged]
    if not broken:
        return None
    return Cause(
        code="checksum_mismatch",
        message=f"Slots {broken} of layer {moves.layer} did not arrive as they were sent: their checksums "
        "differ. Nothing was changed.",
        detail={"layer": moves.layer, "slots": len(broken)},
    )


def applied(state: ClusterState, command: cmd.ReportLayerApplied, facts: Facts) -> list[Event]:
    """Go on to the next layer, or seal the epoch; set ranks back that do not compute by the committed map."""
    at_hand = _reported(state, command, "committed")
    if at_hand is None:
        return []
    from actors.deciding import balancing

    experts = at_hand.served.experts
    expected = balancing.digest(at_hand.moves.map, experts.experts)
    if command.digests != [expected] * experts.ranks:
        cause = _other_maps(command, expected, experts.ranks)
        return _set_back(state, at_hand.served.instance, cause, facts, command)
    common = {"instance_id": command.instance_id, "migration_id": command.migration_id}
    done = ev.LayerApplied(**common, layer=command.layer, digest=expected, seconds=command.seconds)
    sealed = ev.ExpertEpochSealed(**common, epoch=at_hand.migration.epoch)
    return [done, sealed] if at_hand.last else [done]


def _other_maps(command: cmd.ReportLayerApplied, expected: str, ranks: int) -> Cause:
    others = [rank for rank, digest in enumerate(command.digests) if digest != expected]
    said = len(command.digests)
    who = f"ranks {others} of {ranks}" if said == ranks else f"{said} digests of {ranks} ranks"
    return Cause(
        code="digest_mismatch",
        message=f"After layer {command.layer} was applied, the map and lookup of {who} are not those that "
        "the log has. All ranks are started anew and load what the log says.",
        detail={"layer": command.layer},
    )


def expire(state: ClusterState, command: cmd.ExpireMigration, facts: Facts) -> list[Event]:
    """End what takes too long: before the commit by giving up, after it by starting the ranks anew."""
    at_hand = _at_hand(state, command)
    if at_hand is None or facts.now < deadline(at_hand.served.eplb, at_hand.migration):
        return []
    if at_hand.migration.stage == "staging":
        return abort(state, command.instance_id, command.cause)
    return _set_back(state, at_hand.served.instance, command.cause, facts, command)


def deadline(eplb: EplbSettings, migration: Migration) -> float:
    """Until when (Unix seconds) the layer at hand must be staged, or applied."""
    staging = migration.stage == "staging"
    return migration.since + (eplb.stage_timeout_s if staging else eplb.apply_timeout_s)


def _set_back(
    state: ClusterState,
    instance: Instance,
    cause: Cause,
    facts: Facts,
    command: cmd.ReportLayerApplied | cmd.ExpireMigration,
) -> list[Event]:
    return [
        *end_service(state, instance.instance_id, cause),
        set_back(instance, cause, facts.now, command.policy),
    ]


def _reported(
    state: ClusterState, command: cmd.ReportLayerStaged | cmd.ReportLayerApplied, stage: MigrationStage
) -> _AtHand | None:
    """The layer at hand, where the report is on it, in this stage, by the runner that leads."""
    at_hand = _at_hand(state, command)
    if at_hand is None or at_hand.migration.stage != stage:
        return None
    return at_hand if at_hand.served.leader == command.runner_id else None


def _at_hand(
    state: ClusterState, command: cmd.ReportLayerStaged | cmd.ReportLayerApplied | cmd.ExpireMigration
) -> _AtHand | None:
    served = _served(state, command.instance_id)
    if served is None or served.experts.migration is None:
        return None
    at_hand = _AtHand(served, served.experts.migration)
    named = (command.migration_id, command.layer)
    return at_hand if named == (at_hand.migration.migration_id, at_hand.moves.layer) else None


def _served(state: ClusterState, instance_id: str) -> _Served | None:
    instance, experts = state.instances.get(instance_id), state.experts.get(instance_id)
    if instance is None or experts is None or instance.status != "ready":
        return None
    placement = instance.placement
    if placement is None or placement.eplb is None:
        return None
    return _Served(instance, experts, placement.eplb, placement.ranks[0].runner_id)
