"""Rows that events of expert placement make; a part of `projections.event_rows`."""

from __future__ import annotations

from functools import singledispatch

from events import expert_events as ev
from events.base import Event
from events.codec import encode
from events.experts import LayerMoves
from projections.batch import Batch, Place
from projections.expert_words import balance_of, moved_words


@singledispatch
def write(event: Event, batch: Batch, place: Place) -> None:
    """Write the rows that ``event`` makes."""


def forget(instance_id: str, batch: Batch) -> None:
    """Remove what is so only as long as the instance is wanted. Its history stays."""
    for table in ("expert_placements", "expert_loads"):
        batch.run(table, _FORGET.format(table), {"instance_id": instance_id})


@write.register
def _(event: ev.ExpertsPlaced, batch: Batch, place: Place) -> None:
    forget(event.instance_id, batch)
    for layer, experts in enumerate(event.maps):
        slots = len(experts) // event.ranks
        for slot, expert in enumerate(experts):
            row = {
                "instance_id": event.instance_id,
                "layer": layer,
                "slot": slot,
                "expert": expert,
                "rank": slot // slots,
                "epoch": event.epoch,
            }
            batch.insert("expert_placements", row)
    _epoch(batch, place, event.instance_id, event.epoch, event.reason, None, place.at)


@write.register
def _(event: ev.LoadWindowClosed, batch: Batch, place: Place) -> None:
    by_rank = [sum(loads) for loads in zip(*event.ranks, strict=True)]
    row = {
        **_window(event, place),
        "taken": 1,
        "phase": event.phase,
        "steps": event.steps,
        "tokens": event.tokens,
        "seconds": event.seconds,
        "balance": round(balance_of(event.ranks), 6),
        "hottest_rank": by_rank.index(max(by_rank)),
        "bandwidth": event.bandwidth,
    }
    batch.insert("load_windows", row)
    for layer, (experts, ranks) in enumerate(zip(event.experts, event.ranks, strict=True)):
        load = {
            "instance_id": event.instance_id,
            "layer": layer,
            "window_id": place.seq,
            "rows": sum(experts),
            "experts": encode(experts),
            "ranks": encode(ranks),
            "balance": round(balance_of([ranks]), 6),
        }
        batch.upsert("expert_loads", ("instance_id", "layer"), load)


@write.register
def _(event: ev.LoadWindowRefused, batch: Batch, place: Place) -> None:
    cause = {"cause_code": event.cause.code, "cause": event.cause.message}
    batch.insert("load_windows", {**_window(event, place), "taken": 0, **cause})


def _window(event: ev.LoadWindowClosed | ev.LoadWindowRefused, place: Place) -> dict[str, str | int]:
    return {
        "window_id": place.seq,
        "at": place.at,
        "instance_id": event.instance_id,
        "window": event.window,
        "epoch": event.epoch,
        "decision_id": place.decision_id,
    }


@write.register
def _(event: ev.RebalanceDecided, batch: Batch, place: Place) -> None:
    row = {
        "rebalance_id": place.seq,
        "at": place.at,
        "instance_id": event.instance_id,
        "window": event.window,
        "epoch": event.epoch,
        "policy": event.policy,
        "policy_version": event.policy_version,
        "adopted": int(event.adopted),
        "reason": event.reason,
        "balance_now": event.balance.now,
        "balance_predicted": event.balance.predicted,
        "balance_bound": event.balance.bound,
        "layers": event.layers,
        "moves": event.moves,
        "bytes_total": event.bytes_total,
        "bytes_busiest": event.bytes_busiest,
        "saving_s": event.saving_s,
        "cost_s": event.cost_s,
        "decision_id": place.decision_id,
    }
    batch.insert("rebalance_decisions", row)


@write.register
def _(event: ev.MigrationPlanned, batch: Batch, place: Place) -> None:
    row = {
        "migration_id": event.migration_id,
        "instance_id": event.instance_id,
        "epoch": event.epoch,
        "status": "open",
        "layers": len(event.layers),
        "slots": sum(len(layer.moves) for layer in event.layers),
        "layers_committed": 0,
        "layers_applied": 0,
        "planned_at": place.at,
        "decision_id": place.decision_id,
    }
    batch.insert("migrations", row)
    for position, layer in enumerate(event.layers, 1):
        batch.insert("migration_layers", _layer(event.migration_id, position, layer))
    decided = {"decision_id": place.decision_id}
    batch.update("rebalance_decisions", decided, {"migration_id": event.migration_id})


def _layer(migration_id: str, position: int, layer: LayerMoves) -> dict[str, str | int]:
    return {
        "migration_id": migration_id,
        "position": position,
        "layer": layer.layer,
        "status": "planned",
        "slots": len(layer.moves),
        "moves": moved_words(layer),
        "map": encode(layer.map),
    }


@write.register
def _(event: ev.LayerStaged, batch: Batch, place: Place) -> None:
    where = {"migration_id": event.migration_id, "layer": event.layer}
    batch.update("migration_layers", where, {"bytes": event.bytes, "stage_s": event.seconds})


@write.register
def _(event: ev.LayerCommitted, batch: Batch, place: Place) -> None:
    where = {"migration_id": event.migration_id, "layer": event.layer}
    batch.update("migration_layers", where, {"status": "committed", "committed_at": place.at})
    batch.run("migrations", _COMMITTED, where)
    reason = f"{event.migration_id} moved experts"
    _epoch(batch, place, event.instance_id, event.epoch, reason, event.migration_id, None)
    for slot, expert in enumerate(event.map):
        key = {"instance_id": event.instance_id, "layer": event.layer, "slot": slot}
        batch.update("expert_placements", key, {"expert": expert, "epoch": event.epoch})


@write.register
def _(event: ev.LayerApplied, batch: Batch, place: Place) -> None:
    where = {"migration_id": event.migration_id, "layer": event.layer}
    row = {"status": "applied", "applied_at": place.at, "apply_s": event.seconds, "digest": event.digest}
    batch.update("migration_layers", where, row)
    batch.run("migrations", _APPLIED, where)


@write.register
def _(event: ev.MigrationAborted, batch: Batch, place: Place) -> None:
    where = {"migration_id": event.migration_id}
    row = {
        "status": "aborted",
        "ended_at": place.at,
        "failed_layer": event.layer,
        "failed_stage": event.stage,
        "cause_code": event.cause.code,
        "cause": event.cause.message,
    }
    batch.update("migrations", where, row)
    batch.run("migration_layers", _LEFT, where)


@write.register
def _(event: ev.ExpertEpochSealed, batch: Batch, place: Place) -> None:
    done = {"status": "complete", "ended_at": place.at}
    batch.update("migrations", {"migration_id": event.migration_id}, done)
    epoch = {"instance_id": event.instance_id, "epoch": event.epoch}
    batch.update("expert_epochs", epoch, {"complete_at": place.at})


def _epoch(
    batch: Batch,
    place: Place,
    instance_id: str,
    epoch: int,
    reason: str,
    migration_id: str | None,
    complete_at: str | None,
) -> None:
    row = {
        "instance_id": instance_id,
        "epoch": epoch,
        "reason": reason,
        "migration_id": migration_id,
        "began_at": place.at,
        "complete_at": complete_at,
        "began_seq": place.seq,
    }
    batch.run("expert_epochs", _EPOCH_BEGAN, row)


_FORGET = "DELETE FROM {} WHERE instance_id = :instance_id"
_COMMITTED = (
    "UPDATE migrations SET layers_committed = layers_committed + 1 WHERE migration_id = :migration_id"
)
_LEFT = (
    "UPDATE migration_layers SET status = 'left' WHERE migration_id = :migration_id AND status = 'planned'"
)
_APPLIED = "UPDATE migrations SET layers_applied = layers_applied + 1 WHERE migration_id = :migration_id"
# Every layer of an epoch is committed by itself; the first one begins it.
_EPOCH_BEGAN = """INSERT INTO expert_epochs
    (instance_id, epoch, reason, migration_id, began_at, complete_at, began_seq)
    VALUES (:instance_id, :epoch, :reason, :migration_id, :began_at, :complete_at, :began_seq)
    ON CONFLICT (instance_id, epoch) DO NOTHING"""
