"""What a machine does not allow or can't tell keeps no node from starting."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.actor import Actor, spawn
from actors.node import raise_file_limit
from actors.reporter import Reporter
from actors.settings import Settings
from actors.system import ActorSystem
from actors.telemetry import Identity, Telemetry
from events.base import Report
from events.commands import ReportResources


class Listener(Actor):
    """Takes every report."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Report] = []

    def receive(self, message: Report) -> None:
        self.reports.append(message)


def test_a_file_limit_that_the_system_refuses_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS does where its limit for each process is below what is asked for."""

    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_file_limit()


def test_a_models_directory_that_can_not_be_looked_at_has_room_unknown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    system: ActorSystem,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    def stale(_: object) -> None:
        raise OSError("Stale file handle")

    monkeypatch.setattr(shutil, "disk_usage", stale)
    listener, settings = Listener(), Settings(home=str(tmp_path))
    reporter = Reporter(spawn(listener, "master", system), system.clock)
    identity = Identity(
        node_id="node", incarnation="run-1", name="", version="", api_url="", host="127.0.0.1"
    )
    monkeypatch.setattr(Settings, "engine_names", [])
    address = spawn(Telemetry(identity, settings, reporter), "telemetry", system)
    eventually(lambda: any(isinstance(each, ReportResources) for each in listener.reports))
    assert [each.disk_free for each in listener.reports if isinstance(each, ReportResources)] == [0]
    assert address.alive
