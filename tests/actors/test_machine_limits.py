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


@pytest.mark.parametrize(("allowed", "soft"), [(61_440, 32_767), (0, 256)])
def test_the_file_limit_is_what_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, allowed: int, soft: int
) -> None:
    """macOS refuses what is above its own limit for each process, whatever the hard one says."""
    limits = [256]

    def restricted(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > allowed:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(wanted[0])

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", restricted)
    raise_file_limit()
    assert limits[-1] == soft


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
