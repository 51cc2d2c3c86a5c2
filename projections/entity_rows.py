"""Rows of the entities in `ClusterState`: written whenever an event touched one, whatever the event was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from events.values import Quantization
from projections.batch import Batch
from projections.phrases import moment
from projections.state import ClusterState, Download, Instance, Model, Node, Runner

Key = TypeVar("Key")
Entity = TypeVar("Entity")


class Tracked(dict[Key, Entity]):
    """A dictionary of entities that remembers which keys were written or removed since the last `drain`."""

    def __init__(self, entities: dict[Key, Entity]) -> None:
        super().__init__(entities)
        self._touched: dict[Key, None] = {}

    def __setitem__(self, key: Key, entity: Entity) -> None:
        self._touched[key] = None
        super().__setitem__(key, entity)

    def __delitem__(self, key: Key) -> None:
        self._touched[key] = None
        super().__delitem__(key)

    def pop(self, key: Key, *default: Any) -> Any:
        """As `dict.pop`."""
        self._touched[key] = None
        return super().pop(key, *default)

    def drain(self) -> list[Key]:
        """The keys touched since the last call, in order."""
        touched = list(self._touched)
        self._touched.clear()
        return touched


def track(state: ClusterState) -> ClusterState:
    """The same state with dictionaries that remember what was touched."""
    for name in _ENTITIES:
        setattr(state, name, Tracked(getattr(state, name)))
    return state


def write_touched(batch: Batch, state: ClusterState, seq: int, at: str) -> None:
    """Write the row of every entity that the event at ``seq`` touched."""
    for name, (write, gone) in _ENTITIES.items():
        entities: Tracked[Any, Any] = getattr(state, name)
        for key in entities.drain():
            entity = entities.get(key)
            if entity is None:
                gone(batch, key, seq, at)
            else:
                write(batch, entity, seq, at)


def _node(batch: Batch, node: Node, seq: int, at: str) -> None:
    row = {
        "node_id": node.node_id,
        "name": node.name,
        "status": "up" if node.up else "down",
        "incarnation": node.incarnation,
        "version": node.version,
        "pid": node.pid,
        "platform": node.platform,
        "api_url": node.api_url,
        "memory_total_bytes": node.memory_total,
        "memory_available_bytes": node.memory_available,
        "disk_free_bytes": node.disk_free,
        "changed_at": at,
        "changed_seq": seq,
    }
    batch.upsert("nodes", ("node_id",), row, {"first_seen_at": at})


def _model(batch: Batch, model: Model, seq: int, at: str) -> None:
    card, source = model.card, model.source
    row = {
        "model_id": model.model_id,
        "model_type": card.model_type,
        "n_params": card.n_params,
        "n_layers": card.n_layers,
        "hidden_size": card.hidden_size,
        "n_heads": card.n_heads,
        "n_kv_heads": card.n_kv_heads,
        "head_dim": card.head_dim,
        "vocab_size": card.vocab_size,
        "max_context": card.max_context,
        "n_experts": card.n_experts,
        "dtype": card.dtype,
        "quantization": _quantization(card.quantization),
        "weight_bytes": card.weight_bytes,
        "has_chat_template": int(card.has_chat_template),
        "source": source.kind,
        "location": source.location,
        "revision": source.revision,
        "digest": source.digest,
        "changed_at": at,
        "changed_seq": seq,
    }
    batch.upsert("models", ("model_id",), row, {"described_at": at})


def _download(batch: Batch, download: Download, seq: int, at: str) -> None:
    row = {
        "model_id": download.model_id,
        "node_id": download.node_id,
        "done_bytes": download.done_bytes,
        "total_bytes": download.total_bytes,
    }
    if download.status == "running":
        batch.run("downloads", _DOWNLOAD_PROGRESSED, row)


def _download_gone(batch: Batch, key: tuple[str, str], seq: int, at: str) -> None:
    row = {"node_id": key[0], "model_id": key[1], "at": at}
    batch.run("downloads", _DOWNLOAD_INTERRUPTED, row)


def _instance(batch: Batch, instance: Instance, seq: int, at: str) -> None:
    wanted, cause = instance.settings, instance.cause
    row = {
        "instance_id": instance.instance_id,
        "model_id": instance.model_id,
        "status": instance.status,
        "failed_attempts": instance.attempts,
        "cause_code": cause.code if cause else None,
        "cause": cause.message if cause else None,
        "retry_at": _moment_or_none(instance.retry_at),
        "placed_at": _moment_or_none(instance.placed_at),
        "ready_at": _moment_or_none(instance.ready_at),
        "wanted_strategy": wanted.shard_strategy,
        "wanted_context": wanted.context,
        "wanted_batch": wanted.batch,
        "wanted_engine": wanted.engine,
        "wanted_dtype": wanted.dtype,
        "wanted_node_id": wanted.node_id,
        "wanted_device_id": wanted.device_id,
        "changed_at": at,
        "changed_seq": seq,
    }
    batch.upsert("instances", ("instance_id",), row, {"requested_at": at})


def _instance_gone(batch: Batch, instance_id: str, seq: int, at: str) -> None:
    row = {"status": "deleted", "placement_id": None, "deleted_at": at, "changed_at": at, "changed_seq": seq}
    batch.update("instances", {"instance_id": instance_id}, row)


def _runner(batch: Batch, runner: Runner, seq: int, at: str) -> None:
    row = {
        "runner_id": runner.runner_id,
        "instance_id": runner.instance_id,
        "node_id": runner.node_id,
        "device_id": runner.device_id,
        "status": type(runner.status).__name__,
        "current": int(runner.current),
        "changed_at": at,
        "changed_seq": seq,
    }
    batch.upsert("runners", ("runner_id",), row, {"placed_at": at, "detail": ""})


def _runner_gone(batch: Batch, runner_id: str, seq: int, at: str) -> None:
    row = {"current": 0, "changed_at": at, "changed_seq": seq}
    batch.update("runners", {"runner_id": runner_id}, row)


def _never(batch: Batch, key: str, seq: int, at: str) -> None:
    """For entities that never leave the state."""


def _quantization(quantization: Quantization | None) -> str | None:
    return f"{quantization.bits} bits, groups of {quantization.group_size}" if quantization else None


def _moment_or_none(at: float) -> str | None:
    return moment(at) if at else None


RUNNING_DOWNLOAD = """WHERE status = 'running' AND download_id =
    (SELECT max(download_id) FROM downloads WHERE model_id = :model_id AND node_id = :node_id)"""
_DOWNLOAD_PROGRESSED = (
    f"UPDATE downloads SET done_bytes = :done_bytes, total_bytes = :total_bytes {RUNNING_DOWNLOAD}"
)
_DOWNLOAD_INTERRUPTED = f"UPDATE downloads SET status = 'interrupted', ended_at = :at {RUNNING_DOWNLOAD}"

_Write = Callable[[Batch, Any, int, str], None]

_ENTITIES: dict[str, tuple[_Write, _Write]] = {
    "nodes": (_node, _never),
    "models": (_model, _never),
    "downloads": (_download, _download_gone),
    "instances": (_instance, _instance_gone),
    "runners": (_runner, _runner_gone),
}
