"""Rows that an event itself makes: history, attempts, failures. What an entity is now, see `entity_rows`."""

from __future__ import annotations

from functools import singledispatch

from events import catalogue as ev
from events import status as st
from events.base import Event
from events.expert_events import ExpertEvent
from events.values import Usage
from projections import expert_rows
from projections.batch import Batch, Place
from projections.entity_rows import RUNNING_DOWNLOAD
from projections.failures import Failure
from projections.phrases import moment
from projections.words import origin, reasons, status_detail


@singledispatch
def write(event: Event, batch: Batch, place: Place) -> None:
    """Write the rows that ``event`` makes by itself; most make some, the others only touch entities."""


@write.register
def _(event: ev.EpochStarted, batch: Batch, place: Place) -> None:
    row = {
        "epoch": event.epoch,
        "node_id": event.node_id,
        "incarnation": event.incarnation,
        "started_at": place.at,
        "seq": place.seq,
    }
    batch.upsert("epochs", ("epoch",), row)


@write.register
def _(event: ev.NodeStarted, batch: Batch, place: Place) -> None:
    node = {"node_id": event.node_id}
    batch.update("nodes", node, {"started_at": place.at, "stopped_at": None, "stopped_because": None})
    batch.run("devices", "DELETE FROM devices WHERE node_id = :node_id", node)
    batch.run("engines", "DELETE FROM engines WHERE node_id = :node_id", node)
    for device in event.devices:
        row = {
            "device_id": device.device_id,
            "kind": device.kind,
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "memory_free_bytes": device.memory_free,
        }
        batch.upsert("devices", ("node_id", "device_id"), {**node, **row})
    for engine in event.engines:
        row = {
            "engine": engine.engine,
            "version": engine.version,
            "usable": int(engine.ok),
            "detail": engine.detail,
            "dtype": engine.dtype,
            "devices": ", ".join(engine.device_ids),
            "options": _pairs(engine.options),
        }
        batch.upsert("engines", ("node_id", "engine"), {**node, **row})


@write.register
def _(event: ev.NodeStopped, batch: Batch, place: Place) -> None:
    row = {"stopped_at": place.at, "stopped_because": event.cause.message}
    batch.update("nodes", {"node_id": event.node_id}, row)


@write.register
def _(event: ev.ActorFailed, batch: Batch, place: Place) -> None:
    row = {
        "node_id": event.node_id,
        "actor": event.actor,
        "error": event.error,
        "action": event.action,
        "at": place.at,
    }
    batch.run("actors", _ACTOR_FAILED, row)


@write.register
def _(event: ev.DeadLettersCounted, batch: Batch, place: Place) -> None:
    row = {"node_id": event.node_id, "actor": event.actor, "count": event.count, "sample": event.sample}
    batch.run("actors", _DEAD_LETTERS, row)


@write.register
def _(event: ev.ModelStored, batch: Batch, place: Place) -> None:
    row = {
        "model_id": event.model_id,
        "node_id": event.node_id,
        "path": event.path,
        "size_bytes": event.size_bytes,
        "stored_at": place.at,
        "gone_at": None,
    }
    batch.upsert("model_locations", ("model_id", "node_id"), row)
    batch.run("downloads", _DOWNLOAD_STORED, {**row, "at": place.at})


@write.register
def _(event: ev.ModelGone, batch: Batch, place: Place) -> None:
    where = {"model_id": event.model_id, "node_id": event.node_id}
    batch.update("model_locations", where, {"gone_at": place.at})


@write.register
def _(event: ev.DownloadStarted, batch: Batch, place: Place) -> None:
    row = {
        "download_id": place.seq,
        "model_id": event.model_id,
        "node_id": event.node_id,
        "attempt": event.attempt,
        "status": "running",
        "done_bytes": 0,
        "total_bytes": 0,
        "source": origin(event.source),
        "started_at": place.at,
    }
    batch.insert("downloads", row)


@write.register
def _(event: ev.DownloadFailed, batch: Batch, place: Place) -> None:
    row = {
        "model_id": event.model_id,
        "node_id": event.node_id,
        "code": event.cause.code,
        "message": event.cause.message,
        "retry_at": moment(event.retry_at) if event.retry_at else None,
        "at": place.at,
    }
    batch.run("downloads", _DOWNLOAD_FAILED, row)


@write.register
def _(event: ev.InstancePlaced, batch: Batch, place: Place) -> None:
    placement = event.placement
    row = {
        "placement_id": place.seq,
        "instance_id": event.instance_id,
        "attempt": placement.attempt,
        "outcome": "starting",
        "engine": placement.engine,
        "dtype": placement.dtype,
        "strategy": placement.strategy,
        "context": placement.context,
        "batch": placement.batch,
        "n_ranks": len(placement.ranks),
        "placed_at": place.at,
        "decision_id": place.decision_id,
    }
    batch.insert("placements", row)
    batch.update("instances", {"instance_id": event.instance_id}, {"placement_id": place.seq})
    _ranks(event, batch, place)
    _candidates(event, batch, place)


def _ranks(event: ev.InstancePlaced, batch: Batch, place: Place) -> None:
    for rank in event.placement.ranks:
        row = {
            "placement_id": place.seq,
            "rank": rank.rank,
            "runner_id": rank.runner_id,
            "node_id": rank.node_id,
            "device_id": rank.device_id,
            "start_layer": rank.start_layer,
            "end_layer": rank.end_layer,
            "reserved_bytes": rank.reserved_bytes,
        }
        batch.insert("ranks", row)
        where = {"runner_id": rank.runner_id}
        batch.update("runners", where, {"placement_id": place.seq, "rank": rank.rank})
        _runner_history(batch, place, rank.runner_id, event.instance_id, st.Spawning())


def _candidates(event: ev.InstancePlaced, batch: Batch, place: Place) -> None:
    for position, candidate in enumerate(event.candidates, 1):
        row = {
            "placement_id": place.seq,
            "position": position,
            "node_id": candidate.node_id,
            "device_id": candidate.device_id,
            "engine": candidate.engine,
            "dtype": candidate.dtype,
            "verdict": candidate.verdict,
            "reasons": reasons(candidate),
            "has_files": int(candidate.has_files),
            "weights_bytes": candidate.weights_bytes,
            "kv_bytes": candidate.kv_bytes,
            "overhead_bytes": candidate.overhead_bytes,
            "needed_bytes": candidate.needed_bytes,
            "free_bytes": candidate.free_bytes,
        }
        batch.insert("candidates", row)


@write.register
def _(event: ev.InstanceReady, batch: Batch, place: Place) -> None:
    row = {"instance_id": event.instance_id, "at": place.at, "load_s": event.load_s}
    batch.run("placements", _PLACEMENT_READY, row)


@write.register
def _(event: ev.InstanceSetBack, batch: Batch, place: Place) -> None:
    _placement_over(batch, place, event.instance_id, "set back", event.cause.message)


@write.register
def _(event: ev.InstanceFailed, batch: Batch, place: Place) -> None:
    _placement_over(batch, place, event.instance_id, "failed", event.cause.message)


@write.register
def _(event: ev.InstanceRetried, batch: Batch, place: Place) -> None:
    _placement_over(batch, place, event.instance_id, "retried", f"{event.by} asked for a new try")


@write.register
def _(event: ev.InstanceDeleted, batch: Batch, place: Place) -> None:
    _placement_over(batch, place, event.instance_id, "deleted", "the instance is no longer wanted")
    expert_rows.forget(event.instance_id, batch)


def _placement_over(batch: Batch, place: Place, instance_id: str, outcome: str, why: str) -> None:
    row = {"instance_id": instance_id, "outcome": outcome, "reason": why, "at": place.at}
    batch.run("placements", _PLACEMENT_OVER, row)
    batch.update("instances", {"instance_id": instance_id}, {"placement_id": None})


@write.register
def _(event: ev.RunnerStatusChanged, batch: Batch, place: Place) -> None:
    status = event.status
    row: dict[str, str | int | float | None] = {
        "status": type(status).__name__,
        "detail": status_detail(status),
        "changed_at": place.at,
        "changed_seq": place.seq,
    }
    if isinstance(status, st.Idle):
        row["pid"] = status.pid
    elif isinstance(status, st.Ready):
        row["ready_at"] = place.at
    elif isinstance(status, st.Shutdown):
        row["ended_at"] = place.at
    elif isinstance(status, st.Failed):
        row["ended_at"] = place.at
        row["signal"] = status.diagnostics.signal or None
        row["exit_code"] = status.diagnostics.exit_code
    batch.update("runners", {"runner_id": event.runner_id}, row)
    _runner_history(batch, place, event.runner_id, event.instance_id, status)


def _runner_history(
    batch: Batch, place: Place, runner_id: str, instance_id: str, status: st.RunnerStatus
) -> None:
    row = {
        "seq": place.seq,
        "at": place.at,
        "runner_id": runner_id,
        "instance_id": instance_id,
        "status": type(status).__name__,
        "detail": status_detail(status),
        "decision_id": place.decision_id,
    }
    batch.insert("runner_history", row)


@write.register
def _(event: ExpertEvent, batch: Batch, place: Place) -> None:
    expert_rows.write(event, batch, place)


@write.register
def _(event: ev.TaskCreated, batch: Batch, place: Place) -> None:
    row = {
        "task_id": event.task_id,
        "request_id": event.request_id,
        "choice": event.index,
        "status": "open",
        "kind": event.kind,
        "model_id": event.model_id,
        "instance_id": event.instance_id,
        "runner_id": event.runner_id,
        "max_tokens": event.sampling.max_tokens,
        "temperature": event.sampling.temperature,
        "top_p": event.sampling.top_p,
        "seed": event.sampling.seed,
        "created_at": place.at,
        "decision_id": place.decision_id,
    }
    batch.insert("tasks", row)


@write.register
def _(event: ev.TaskCancelRequested, batch: Batch, place: Place) -> None:
    row = {"status": "cancelling", "cause_code": "cancelled", "cause": event.reason}
    batch.update("tasks", {"task_id": event.task_id}, row)


@write.register
def _(event: ev.TaskFinished, batch: Batch, place: Place) -> None:
    row = {
        "status": "finished",
        "finish_reason": event.finish_reason,
        "cause_code": None,
        "cause": None,
        "queued_s": event.timings.queued_s,
        "prefill_s": event.timings.prefill_s,
        "decode_s": event.timings.decode_s,
        **_ended(event.usage, place),
    }
    batch.update("tasks", {"task_id": event.task_id}, row)


@write.register
def _(event: ev.TaskFailed, batch: Batch, place: Place) -> None:
    row = {"status": "failed", "cause_code": event.cause.code, "cause": event.cause.message}
    batch.update("tasks", {"task_id": event.task_id}, {**row, **_ended(event.usage, place)})


@write.register
def _(event: ev.TaskCancelled, batch: Batch, place: Place) -> None:
    row = {"status": "cancelled", "cause_code": "cancelled", "cause": event.reason}
    batch.update("tasks", {"task_id": event.task_id}, {**row, **_ended(event.usage, place)})


def _ended(usage: Usage, place: Place) -> dict[str, str | int | float | None]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "ended_at": place.at,
    }


def write_failure(batch: Batch, place: Place, failure: Failure) -> None:
    """Write the row of a failure."""
    row = {
        "failure_id": place.seq,
        "at": place.at,
        "kind": failure.kind,
        "subject": failure.subject,
        "code": failure.code,
        "sentence": failure.sentence,
        "detail": "\n".join(failure.detail),
        "instance_id": place.instance_id,
        "decision_id": place.decision_id,
    }
    batch.insert("failures", row)


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


_LATEST_PLACEMENT = """WHERE ended_at IS NULL AND placement_id =
    (SELECT max(placement_id) FROM placements WHERE instance_id = :instance_id)"""
_PLACEMENT_READY = (
    f"UPDATE placements SET outcome = 'ready', ready_at = :at, load_s = :load_s {_LATEST_PLACEMENT}"
)
_PLACEMENT_OVER = (
    f"UPDATE placements SET outcome = :outcome, reason = :reason, ended_at = :at {_LATEST_PLACEMENT}"
)

_LATEST_DOWNLOAD = """WHERE download_id =
    (SELECT max(download_id) FROM downloads WHERE model_id = :model_id AND node_id = :node_id)"""
# The entity has left the state by then, which `entity_rows` took for an interruption.
_DOWNLOAD_STORED = f"""UPDATE downloads
    SET status = 'stored', ended_at = :at, done_bytes = max(done_bytes, total_bytes)
    {_LATEST_DOWNLOAD} AND status <> 'failed' AND (ended_at IS NULL OR ended_at = :at)"""
_DOWNLOAD_FAILED = f"""UPDATE downloads SET status = 'failed', ended_at = :at, failure_code = :code,
    failure = :message, retry_at = :retry_at {RUNNING_DOWNLOAD}"""

_ACTOR_FAILED = """INSERT INTO actors
    (node_id, actor, crashes, last_error, last_action, last_crash_at, dead_letters)
    VALUES (:node_id, :actor, 1, :error, :action, :at, 0)
    ON CONFLICT (node_id, actor) DO UPDATE SET crashes = crashes + 1, last_error = excluded.last_error,
    last_action = excluded.last_action, last_crash_at = excluded.last_crash_at"""
_DEAD_LETTERS = """INSERT INTO actors (node_id, actor, crashes, dead_letters, last_dead_letter)
    VALUES (:node_id, :actor, 0, :count, :sample)
    ON CONFLICT (node_id, actor) DO UPDATE SET dead_letters = dead_letters + excluded.dead_letters,
    last_dead_letter = excluded.last_dead_letter"""
