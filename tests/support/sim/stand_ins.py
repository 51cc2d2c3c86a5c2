"""What stands for hardware and clients' connections: telemetry, downloader, API.

Each takes the messages that the real one takes and reports as it does, through the real reporter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from support.cards import SMALL
from support.sim.loop import SimulatedLoop

from actors.actor import Actor
from actors.downloader import Fetch
from actors.gateway import Gateway
from actors.reporter import Reporter, SayAgain
from actors.settings import Settings
from actors.telemetry import Identity
from events import commands as cmd
from events.ids import fresh
from events.values import Cause, Device, EngineReport, ModelSource

GIB = 1 << 30
READ_EVERY_S = 5.0
MOVES = 0.2
"""Of the readings, those that differ from the last one."""

_SOURCE = ModelSource(kind="hub", location="some/model", revision="main")


class _Read(NamedTuple):
    """Time for a reading; the first one comes with the node's start."""


class SimulatedTelemetry(Actor):
    """Stands for `actors.telemetry.Telemetry`: a machine with one CPU or two and 16 GiB."""

    def __init__(self, identity: Identity, settings: Settings, reporter: Reporter, cpus: int) -> None:
        super().__init__()
        self._identity = identity
        self._devices = [
            Device(device_id=f"cpu:{number}", kind="cpu", name="Some CPU", memory_bytes=16 * GIB // cpus)
            for number in range(cpus)
        ]
        self._settings = settings
        self._reporter = reporter
        self._tested = False
        self._free = 14 * GIB

    def started(self) -> None:
        self.after(self.system.random.random(), _Read())

    def receive(self, message: Any) -> None:
        if isinstance(message, _Read):
            if self._tested:
                self._report_resources()
            else:
                self._tested = True
                self._report_start()
            self.after(READ_EVERY_S, _Read())
        elif self._tested:
            self._report_start()

    def _report_start(self) -> None:
        me = self._identity
        engine = EngineReport(
            engine="mlx",
            version="0.32.0",
            ok=True,
            detail="",
            device_ids=[device.device_id for device in self._devices],
            dtype="float32",
        )
        self._reporter.send(
            cmd.ReportNodeStarted(
                command_id=fresh("report"),
                origin=me.node_id,
                incarnation=me.incarnation,
                name=me.name,
                version=me.version,
                pid=1,
                platform="Linux x86_64",
                api_url=me.api_url,
                host=me.host,
                devices=self._devices,
                engines=[engine],
                memory_total=16 * GIB,
                memory_available=14 * GIB,
                policy=self._settings.policy,
            )
        )
        self._report_resources()

    def _report_resources(self) -> None:
        if self.system.random.random() < MOVES:
            self._free = int((10 + 4 * self.system.random.random()) * GIB)
        self._reporter.send(
            cmd.ReportResources(
                command_id=fresh("report"),
                origin=self._identity.node_id,
                memory_available=self._free,
                disk_free=500 * GIB,
            )
        )


@dataclass
class Shelf:
    """The model files of a machine, which outlive its processes."""

    has_model: bool


class _Fetched(NamedTuple):
    error: Cause | None


class SimulatedDownloader(Actor):
    """Stands for `actors.downloader.Downloader`: one fetch in five fails."""

    def __init__(self, node_id: str, settings: Settings, reporter: Reporter, shelf: Shelf) -> None:
        super().__init__()
        self._node_id = node_id
        self._settings = settings
        self._reporter = reporter
        self._shelf = shelf
        self._fetching = False

    def started(self) -> None:
        self._say_all()

    def receive(self, message: Any) -> None:
        match message:
            case Fetch():
                self._fetch()
            case SayAgain():
                self._say_all()
            case _Fetched(error):
                self._fetching = False
                if error is None:
                    self._shelf.has_model = True
                    self._say_all()
                else:
                    self._report_download(error)

    def _fetch(self) -> None:
        if not self._fetching:
            self._fetching = True
            self._report_download(None)
            fails = self.system.random.random() < 0.2
            cause = Cause(code="hub_unreachable", message="The hub did not answer.")
            self.after(0.5 + self.system.random.random(), _Fetched(cause if fails else None))

    def _say_all(self) -> None:
        self._reporter.send(
            cmd.ReportModel(
                command_id=fresh("report"),
                origin=self._node_id,
                card=SMALL,
                source=_SOURCE,
                path="/models/small" if self._shelf.has_model else "",
                size_bytes=SMALL.weight_bytes if self._shelf.has_model else 0,
            )
        )

    def _report_download(self, cause: Cause | None) -> None:
        self._reporter.send(
            cmd.ReportDownload(
                command_id=fresh("report"),
                origin=self._node_id,
                model_id=SMALL.model_id,
                done_bytes=0,
                total_bytes=SMALL.weight_bytes,
                cause=cause,
                retryable=True,
                policy=self._settings.policy,
            )
        )


class SimulatedApi(Actor):
    """Stands for the API server: the real gateway, on a simulated event loop; see `support.sim.clients`."""

    def __init__(self, gateway: Gateway, loop: SimulatedLoop) -> None:
        super().__init__()
        self.gateway = gateway
        self.loop = loop
        self.is_open = False

    def started(self) -> None:
        self.loop.create_task(self._open())

    def stopping(self) -> None:
        if self.is_open:
            self.gateway.close()

    def receive(self, message: Any) -> None:
        """Only what has broken the gateway; it comes with a new API."""
        raise message

    async def _open(self) -> None:
        await self.gateway.open()
        self.is_open = True
        self.gateway.broken.add_done_callback(lambda broken: self.mailbox.put_system(broken.exception()))
