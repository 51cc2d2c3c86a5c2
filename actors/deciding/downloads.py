"""Models and the fetching of their files."""

from __future__ import annotations

import msgspec

from actors.deciding.ends import end_service
from actors.deciding.instances import backoff
from events import catalogue as ev
from events import commands as cmd
from events.base import Event
from events.commands import Facts
from events.values import Cause
from projections.state import ClusterState, Download, Model

MATERIAL_SHARE = 10
"""Progress is logged when it moved by one part in this many."""


def model(state: ClusterState, command: cmd.ReportModel, facts: Facts) -> list[Event]:  # noqa: ARG001
    """A model's card and source, and its files where the node has them."""
    known = state.models.get(command.card.model_id)
    model_id = command.card.model_id
    events: list[Event] = []
    if known is None or _describes_more(known, command):
        events.append(ev.ModelDescribed(model_id=model_id, card=command.card, source=command.source))
    if command.path and (known is None or known.paths.get(command.origin) != command.path):
        events.append(
            ev.ModelStored(
                model_id=model_id, node_id=command.origin, path=command.path, size_bytes=command.size_bytes
            )
        )
    return events


def _describes_more(known: Model, command: cmd.ReportModel) -> bool:
    """Files at hand say more than a description: one without files never replaces one with."""
    if known.paths and not command.path:
        return False
    return (known.card, known.source) != (command.card, command.source)


def model_gone(state: ClusterState, command: cmd.ReportModelGone, facts: Facts) -> list[Event]:  # noqa: ARG001
    """A model's files have disappeared from a node."""
    known = state.models.get(command.model_id)
    if known is None or command.origin not in known.paths:
        return []
    return [ev.ModelGone(model_id=command.model_id, node_id=command.origin)]


def download(state: ClusterState, command: cmd.ReportDownload, facts: Facts) -> list[Event]:
    """A fetch's start, progress worth a line, or failure with the time of the next try.

    A word that comes after the model was stored, or a second failure of one fetch, is no news.
    """
    known = state.models.get(command.model_id)
    if known is None or command.origin in known.paths:
        return []
    running = state.downloads.get((command.origin, command.model_id))
    over = running is not None and running.status == "failed"
    if command.cause is not None:
        return [] if over else _failed(state, command, command.cause, running, facts.now)
    if running is None or over:
        attempt = running.attempt + 1 if running is not None else 1
        return [
            ev.DownloadStarted(
                model_id=command.model_id, node_id=command.origin, source=known.source, attempt=attempt
            )
        ]
    moved = command.done_bytes - running.done_bytes
    if moved * MATERIAL_SHARE < max(command.total_bytes, 1):
        return []
    return [
        ev.DownloadProgressed(
            model_id=command.model_id,
            node_id=command.origin,
            done_bytes=command.done_bytes,
            total_bytes=command.total_bytes,
        )
    ]


def _failed(
    state: ClusterState,
    command: cmd.ReportDownload,
    cause: Cause,
    running: Download | None,
    now: float,
) -> list[Event]:
    attempt = running.attempt if running is not None else 1
    again = command.retryable and attempt <= command.policy.max_instance_retries
    event = ev.DownloadFailed(
        model_id=command.model_id,
        node_id=command.origin,
        cause=cause,
        attempt=attempt,
        retry_at=now + backoff(attempt, command.policy) if again else 0.0,
    )
    return [event] if again else [event, *_fail_waiting_instances(state, command, cause, attempt)]


def _fail_waiting_instances(
    state: ClusterState, command: cmd.ReportDownload, cause: Cause, attempts: int
) -> list[Event]:
    """No files will come: the instances that wait for them on this node have failed."""
    cause = msgspec.structs.replace(cause, code="download_failed")
    events: list[Event] = []
    for instance in state.instances.values():
        ranks = instance.placement.ranks if instance.placement else []
        here = any(rank.node_id == command.origin for rank in ranks)
        if instance.model_id == command.model_id and here and instance.status == "placed":
            events.extend(end_service(state, instance.instance_id, cause))
            events.append(ev.InstanceFailed(instance_id=instance.instance_id, cause=cause, attempts=attempts))
    return events
