"""Telemetry: what this node has (devices, engines that pass their self-test) and uses (memory, disk)."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import threading
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from actors.actor import Actor
from actors.reporter import Reporter, SayAgain
from actors.settings import Settings
from engines.contract import Tested
from engines.registry import ENGINES
from events import commands as cmd
from events.ids import fresh
from events.values import Device, EngineReport

READ_EVERY_S = 5.0

logger = logging.getLogger("cuebook.telemetry")


class _Read(NamedTuple):
    """Time for a reading."""


class _Tested(NamedTuple):
    """The self-tests are done."""

    engines: list[Tested]


class Identity(NamedTuple):
    """Who a node is in this start."""

    node_id: str
    incarnation: str
    name: str
    version: str
    api_url: str
    host: str


class Telemetry(Actor):
    """Reports the node's start once its engines are tested, then readings of its memory and disk."""

    def __init__(self, identity: Identity, settings: Settings, reporter: Reporter) -> None:
        super().__init__()
        self._identity = identity
        self._settings = settings
        self._reporter = reporter
        self._engines: list[Tested] | None = None

    def started(self) -> None:
        """Test the engines on a thread: it takes seconds where no earlier result can be used."""
        threading.Thread(target=self._test_engines, name="self-tests", daemon=True).start()

    def receive(self, message: Any) -> None:
        """Handle the end of the self-tests and the timer of the readings."""
        match message:
            case _Tested():
                self._engines = message.engines
                self._report_start(message.engines)
                self.after(READ_EVERY_S, _Read())
            case SayAgain():
                if self._engines is not None:
                    self._report_start(self._engines)
            case _:
                self._report_resources()
                self.after(READ_EVERY_S, _Read())

    def _test_engines(self) -> None:
        engines = [ENGINES[name] for name in self._settings.engine_names]
        several = sum(engine.installed() for engine in engines) > 1  # else there is nothing to choose
        measure = several or self._settings.measure_speed
        tests = [engine.self_test(measure=measure) for engine in engines]
        for tested in tests:
            logger.info("engine %s: %s", tested.report.engine, tested.report.detail)
        self.mailbox.put_system(_Tested(tests))

    def _report_start(self, tests: list[Tested]) -> None:
        identity, memory = self._identity, psutil.virtual_memory()
        found = _all_devices(devices(self._settings.cpu_devices), tests)
        self._reporter.send(
            cmd.ReportNodeStarted(
                command_id=fresh("report"),
                origin=identity.node_id,
                incarnation=identity.incarnation,
                name=identity.name,
                version=identity.version,
                pid=os.getpid(),
                platform=f"{platform.system()} {platform.release()} {platform.machine()}",
                api_url=identity.api_url,
                host=identity.host,
                devices=found,
                engines=[_on_all(tested.report, found) for tested in tests],
                memory_total=memory.total,
                memory_available=memory.available,
                policy=self._settings.policy,
            )
        )
        self._report_resources()

    def _report_resources(self) -> None:
        self._reporter.send(
            cmd.ReportResources(
                command_id=fresh("report"),
                origin=self._identity.node_id,
                memory_available=psutil.virtual_memory().available,
                disk_free=_disk_free(self._settings.default_models_path),
            )
        )


def devices(cpu_devices: int = 1) -> list[Device]:
    """The devices of this machine that are known without an engine.

    The CPU and its memory can be divided into ``cpu_devices``, each of which takes a rank.
    """
    memory = psutil.virtual_memory().total
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return [Device(device_id="metal:0", kind="metal", name="Apple GPU", memory_bytes=memory)]
    name = platform.processor() or platform.machine()
    return [
        Device(device_id=f"cpu:{number}", kind="cpu", name=name, memory_bytes=memory // cpu_devices)
        for number in range(cpu_devices)
    ]


def _all_devices(own: list[Device], tests: list[Tested]) -> list[Device]:
    """The node's own devices, then those that its engines found, each once."""
    found = {device.device_id: device for device in own}
    for tested in tests:
        for device in tested.devices:
            found.setdefault(device.device_id, device)
    return list(found.values())


def _on_all(report: EngineReport, found: list[Device]) -> EngineReport:
    """An engine that computes on one device of a kind computes on all of that kind: they are alike."""
    kinds = {device_id.partition(":")[0] for device_id in report.device_ids}
    return msgspec.structs.replace(
        report, device_ids=[device.device_id for device in found if device.kind in kinds]
    )


def _disk_free(path: Path) -> int:
    """Bytes; 0 where they are not known: the directory is closed to us, or its server does not answer."""
    try:
        return shutil.disk_usage(next(parent for parent in (path, *path.parents) if parent.exists())).free
    except OSError as error:
        logger.warning("The room at %s is not known: %s", path, error)
        return 0
