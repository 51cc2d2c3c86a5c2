"""Drafts and logs that the tests of the log are made with."""

from __future__ import annotations

from pathlib import Path

from events.base import Event
from events.catalogue import (
    EpochStarted,
    InstanceRequested,
    NodeResourcesChanged,
    TaskCancelRequested,
    TaskFinished,
)
from events.commands import (
    CancelTasks,
    DeleteInstance,
    Facts,
    PlaceInstance,
    ReportResources,
    StartEpoch,
)
from events.drivers import STDLIB, Connection, Driver
from events.log import EventLog
from events.record import Draft
from events.values import Cause, PlacementSettings, Timings, Usage

T0 = 1_700_000_000.25
NODE = "node-1"


def facts(now: float = T0, epoch: int = 1) -> Facts:
    return Facts(now=now, seed="seed", epoch=epoch, node_id=NODE)


def draft(command, *events: Event, now: float = T0, epoch: int = 1, rejection: Cause | None = None) -> Draft:
    return Draft(
        command=command,
        facts=facts(now, epoch),
        decider="cluster",
        decider_version=1,
        events=list(events),
        rejection=rejection,
    )


def start(epoch: int = 1, command_id: str = "cmd-start") -> Draft:
    command = StartEpoch(command_id=command_id, node_id=NODE, incarnation="inc-1")
    event = EpochStarted(epoch=epoch, node_id=NODE, incarnation="inc-1")
    return draft(command, event, epoch=epoch - 1)


def finish(n: int) -> Draft:
    """A decision of two events about ``task-n``."""
    command = CancelTasks(command_id=f"cmd-finish-{n}", task_ids=[f"task-{n}"], reason="client left")
    return draft(
        command,
        TaskCancelRequested(task_id=f"task-{n}", reason="client left"),
        TaskFinished(
            task_id=f"task-{n}",
            finish_reason="stop",
            usage=Usage(prompt_tokens=n, completion_tokens=2 * n),
            timings=Timings(queued_s=0.5, prefill_s=1.5, decode_s=n / 8),
        ),
        now=T0 + n,
    )


def request(n: int) -> Draft:
    command = PlaceInstance(command_id=f"cmd-place-{n}", model_id="m", settings=PlacementSettings())
    event = InstanceRequested(instance_id=f"inst-{n}", model_id="m", settings=PlacementSettings())
    return draft(command, event, now=T0 + n)


def refuse(n: int) -> Draft:
    command = DeleteInstance(command_id=f"cmd-delete-{n}", instance_id="inst-0")
    cause = Cause(code="unknown_instance", message="There is no inst-0.", detail={"instances": 0})
    return draft(command, now=T0 + n, rejection=cause)


def reading(n: int) -> Draft:
    """An observation: what a power cut may take."""
    command = ReportResources(command_id=f"cmd-read-{n}", origin="node-2", memory_available=n, disk_free=n)
    event = NodeResourcesChanged(node_id="node-2", memory_available=n, disk_free=n)
    return draft(command, event, now=T0 + n)


def history() -> list[Draft]:
    """A bit of everything: 8 decisions, 9 events."""
    return [start(), request(1), finish(2), refuse(3), reading(4), finish(5), refuse(6), finish(7)]


def write_log(path: Path, drafts: list[Draft], driver: Driver = STDLIB) -> Path:
    log = EventLog.open(path, driver=driver)
    log.append(drafts)
    log.close()
    return path


def query(connection: Connection, sql: str) -> list[tuple]:
    return connection.execute(sql).fetchall()
