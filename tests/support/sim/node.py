"""A machine and the node on it: the tree of actors of `actors.node`, with stand-ins for what is no actor."""

from __future__ import annotations

from pathlib import Path

from support.sim.checks import Checks
from support.sim.disk import Disk
from support.sim.loop import SimulatedLoop
from support.sim.network import Network
from support.sim.process import Process
from support.sim.runners import Groups
from support.sim.stand_ins import Shelf, SimulatedApi, SimulatedDownloader, SimulatedTelemetry
from support.sim.world import World

from actors.actor import Actor
from actors.address import Address
from actors.gateway import Gateway
from actors.journal import Journal
from actors.net.memory import MemoryTransport
from actors.net.transport import Transport
from actors.node import Node
from actors.ordering import interface as io
from actors.ordering.epochs import Epoch
from actors.replica import Paths
from actors.reporter import Reporter
from actors.settings import Settings
from actors.supervision import ChildSpec
from actors.system import ActorIncident, ActorSystem
from events.feed import CommitFeed
from events.reader import LogReader

TIMING = io.Timing(patience=5.0)


class Machine:
    """Its disk stays; processes of the node start and end on it."""

    def __init__(
        self, world: World, network: Network, groups: Groups, checks: Checks, node_id: str, root: Path
    ) -> None:
        self.world = world
        self.network = network
        self.groups = groups
        self.checks = checks
        self.node_id = node_id
        self.disk = Disk(root / node_id)
        self.shelf = Shelf(has_model=world.random.random() < 0.7)
        self.cpus = world.random.choice((1, 1, 2))
        self.copy = checks.copy_of(node_id)
        self.node: SimulatedNode | None = None
        self._skew = world.between(-0.5, 0.5)

    def start(self) -> None:
        """A new process on the disk that there is."""
        if self.node is None:
            self.node = SimulatedNode(self, Process(self.world, self._skew))
            self.node.begin()

    def end(self, *, power: bool) -> None:
        """The process is killed, or the machine loses its power and with it what was not synced."""
        if self.node is not None:
            self._end(self.node, power)

    def _end(self, node: SimulatedNode, power: bool) -> None:
        if node.process.busy:  # with an actor in the middle of something
            self.world.after(0.001, self._end, node, power)
        elif node is self.node:
            if node.transport.running:
                self.network.vanish(node.transport, silently=power)
            self._gone(node, power=power)

    def leave(self) -> None:
        """The node is told to stop: it says goodbye and takes its actors down."""
        if self.node is not None:
            self.node.leave()

    def ended_by_itself(self, node: SimulatedNode) -> None:
        """The root has ended, told so or because it gave up."""
        if node is self.node:
            self._gone(node, power=False)

    def _gone(self, node: SimulatedNode, *, power: bool) -> None:
        self.node = None
        node.process.end()
        node.close_log()
        self.groups.leave_all(self.node_id)
        self.disk.crash(power=power)
        self.copy.closed(power=power)


class SimulatedNode(Node):
    """One process. Everything that decides, orders, keeps or carries out is what production runs."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self.machine = machine
        self.process = process
        settings = Settings(
            home=str(machine.disk.home),
            node_name=machine.node_id,
            cluster="simulated",
            cluster_host=machine.node_id,
            connect_timeout_s=5.0,
            max_instance_retries=3,
            backoff_base_s=0.2,
            backoff_cap_s=1.0,
        )
        system = ActorSystem(clock=process, random=process.world.random, dispatcher=process)
        super().__init__(settings, lambda gateway: self._api(gateway), system)
        self.node_id = machine.node_id
        self.leaving = False
        self.transport = MemoryTransport(machine.network)

    @property
    def api(self) -> SimulatedApi | None:
        """Where clients come in, once it is open."""
        api = self.process.find(SimulatedApi)
        return api if api is not None and api.is_open else None

    @property
    def works_in(self) -> Epoch | None:
        """The epoch that this node works in."""
        journal = self.process.find(Journal)
        core = getattr(journal, "_core", None)  # it has none before it has started
        return core.epoch if core is not None else None

    @property
    def reports_waiting(self) -> int:
        """Reports that nobody has taken yet."""
        return len(self._reporter) if self._reporter is not None else 0

    def rejected_commands(self) -> list[str]:
        """The ids of the commands in all branches that this machine gave up."""
        file = self.machine.disk.driver.open(self.machine.disk.log, write=False)
        return [row[0] for row in file.execute("SELECT command_id FROM rejected_decisions").fetchall()]

    def reader(self) -> LogReader:
        """A connection to its log."""
        return LogReader.open(self.machine.disk.log, driver=self.machine.disk.driver)

    def begin(self) -> None:
        """As `Node.start`, without waiting."""
        settings = self.settings
        self._launch(Paths(settings.log_path, settings.home_path / "snapshots", self.machine.disk.driver))

    def leave(self) -> None:
        """As `Node.stop`, without waiting."""
        self.leaving = True
        goodbye = self._goodbye("the machine is stopped")
        self._master.ask_future(goodbye).add_done_callback(lambda _: self._root.stop())

    def close_log(self) -> None:
        """What the end of a process does; the files stay as they are until then."""
        journal = self.process.find(Journal)
        log = getattr(journal, "_log", None)
        if log is not None:
            log.close()

    def _ended(self) -> None:
        super()._ended()
        self.process.world.after(0.0, self.machine.ended_by_itself, self)

    def _core(self, paths: Paths, feed: CommitFeed, journal: Address) -> list[ChildSpec]:
        """Without the projector, which reads only. The checks are the first to hear of what is committed."""
        self.machine.copy.follow(paths, feed)
        return [spec for spec in super()._core(paths, feed, journal) if spec.name != "projector"]

    def _timing(self) -> io.Timing:
        return TIMING

    def _transport(self) -> Transport:
        self.transport = MemoryTransport(self.machine.network)
        return self.transport

    def _downloader(self, paths: Paths, reporter: Reporter) -> Actor:
        return SimulatedDownloader(self.node_id, self.settings, reporter, self.machine.shelf)

    def _telemetry(self, reporter: Reporter) -> Actor:
        return SimulatedTelemetry(self._identity(), self.settings, reporter, self.machine.cpus)

    def _api(self, gateway: Gateway) -> Actor:
        return SimulatedApi(gateway, SimulatedLoop(self.process))

    def _observe(self, incident: ActorIncident) -> None:
        self.machine.checks.incident(self.node_id, incident)
        super()._observe(incident)
