"""What counts as a failure, and why it happened: one answer for tables, timeline and `why`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from events import catalogue as ev
from events.base import Event
from events.expert_events import MigrationAborted
from events.status import Failed
from events.values import Cause
from projections.words import runner_status

Kind = Literal["runner", "instance", "task", "download", "node", "actor", "migration"]


class Failure(msgspec.Struct, frozen=True):
    """Something that went wrong: ``subject`` is the id of what failed, ``detail`` has lines of evidence."""

    kind: Kind
    subject: str
    code: str
    sentence: str
    detail: list[str]


def failure_of(event: Event) -> Failure | None:
    """The failure that an event tells of, if it does."""
    found = _FAILURES.get(type(event))
    return found(event) if found is not None else None


def _caused(kind: Kind, subject: str, cause: Cause) -> Failure:
    return Failure(kind, subject, cause.code, cause.message, _facts(cause))


def _facts(cause: Cause) -> list[str]:
    return [f"{name}: {value}" for name, value in cause.detail.items()]


def _runner(event: ev.RunnerStatusChanged) -> Failure | None:
    status = event.status
    if not isinstance(status, Failed):
        return None
    detail = [*_facts(status.cause), *status.diagnostics.stderr_tail]
    return Failure(
        "runner", event.runner_id, status.cause.code, runner_status(event.runner_id, status), detail
    )


def _node(event: ev.NodeStopped) -> Failure | None:
    return None if event.clean else _caused("node", event.node_id, event.cause)


def _actor(event: ev.ActorFailed) -> Failure:
    detail = [f"node: {event.node_id}", f"action: {event.action}", f"restarts: {event.restarts}"]
    return Failure("actor", event.actor, "actor_crashed", event.error, detail)


def _branch(event: ev.BranchRejected) -> Failure:
    detail = [f"fork: {event.fork}", f"winner: {event.winner}", *event.command_ids]
    return Failure("node", event.node_id, "branch_rejected", event.reason, detail)


_FAILURES: dict[type[Event], Callable[[Any], Failure | None]] = {
    ev.RunnerStatusChanged: _runner,
    ev.NodeStopped: _node,
    ev.ActorFailed: _actor,
    ev.PeerRefused: lambda event: Failure("node", event.node_id, "peer_refused", event.reason, [event.host]),
    ev.BranchRejected: _branch,
    ev.DownloadFailed: lambda event: _caused("download", event.model_id, event.cause),
    ev.InstanceSetBack: lambda event: _caused("instance", event.instance_id, event.cause),
    ev.InstanceFailed: lambda event: _caused("instance", event.instance_id, event.cause),
    ev.TaskFailed: lambda event: _caused("task", event.task_id, event.cause),
    MigrationAborted: lambda event: _caused("migration", event.migration_id, event.cause),
}
