"""The node: the root. It opens the log, builds the tree of actors and takes it down again.

node (rest_for_one)
  journal
  core (one_for_one)
    master; in a cluster archive, router, backfiller; projector, downloader
    work (one_for_all): runners, worker
    balancing (one_for_all): controllers, balancers
    telemetry, api
"""

from __future__ import annotations

import contextlib
import logging
import resource
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from actors import on_nats
from actors.actor import Actor
from actors.address import Address
from actors.archive import Archive
from actors.backfill import Backfiller
from actors.balancers import Balancers
from actors.downloader import Downloader
from actors.gateway import Gateway
from actors.journal import ALONE, Journal
from actors.master import Master
from actors.membership import as_peer, id_of, mesh_settings
from actors.net.interfaces import interfaces
from actors.net.mesh import Mesh
from actors.net.transport import Transport, TransportError
from actors.ordering.interface import Member, Timing
from actors.projector import Projector
from actors.refusal import StartFailed
from actors.replica import Paths
from actors.reporter import Reporter
from actors.router import Router
from actors.settings import Settings
from actors.streams import PromptShelf, TokenHub
from actors.supervision import ChildSpec, Supervisor
from actors.system import ActorIncident, ActorSystem, log_incident
from actors.telemetry import Identity, Telemetry
from actors.worker import Worker
from events import commands as cmd
from events.drivers import driver_named
from events.errors import LogError
from events.feed import CommitFeed
from events.files import write_durably
from events.ids import fresh
from events.values import Cause
from projections.snapshot import save_near_head

FILE_LIMIT = 65_535
"""Open files that a node asks for; the usual 1,024 are too few for many streams and runners."""
STOP_TIMEOUT_S = 60.0
READ_AT_START = 100_000
"""Events that each actor may have to read at its start; with more between the snapshots and the head, the
node first makes one that is newer."""

logger = logging.getLogger("cuebook.node")

ServerFactory = Callable[[Gateway], Actor]
"""Makes the API server; it comes from the room above."""


class Node:
    """One node, in this process. `start`, then `wait` until something stops it, or `stop` it."""

    def __init__(
        self, settings: Settings, server: ServerFactory | None = None, system: ActorSystem | None = None
    ) -> None:
        self.settings = settings
        self._server = server
        self._system = replace(system or ActorSystem(), observer=self._observe)
        self._stopped = threading.Event()
        self.incarnation = ""
        self._reporter: Reporter | None = None

    def start(self) -> None:
        """Open the log and start all actors.

        Raises `actors.refusal.StartFailed` where an actor can't start (the log is another's, a port is
        taken) or its certificate would not do, `events.errors.DriverMissing`, or `OSError` where the home
        can't be written.
        """
        if self.settings.cluster_nats:
            on_nats.check(self.settings)
        raise_file_limit()
        home = self.settings.home_path
        home.mkdir(parents=True, exist_ok=True)
        self.node_id = node_id(self.settings)
        driver = driver_named(self.settings.log_driver)
        paths = Paths(self.settings.log_path, home / "snapshots", driver)
        read_past(paths)
        self._launch(paths)
        self._root.wait_started(on_nats.START_TIMEOUT_S + STOP_TIMEOUT_S)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the node has ended. False where ``timeout`` seconds were not enough."""
        return self._stopped.wait(timeout)

    def stop(self, reason: str) -> None:
        """Say goodbye in the log, stop everything in reverse order, close the log."""
        try:
            self._master.ask(self._goodbye(reason), STOP_TIMEOUT_S)
        except Exception as error:  # the end must not depend on the state of the master
            logger.warning("The log has no goodbye of this node: %s", error)
        self._root.stop()
        self._root.actor_stopped.wait(STOP_TIMEOUT_S)
        self._stopped.set()

    def _goodbye(self, reason: str) -> cmd.ReportNodeStopping:
        return cmd.ReportNodeStopping(
            command_id=fresh("report"),
            origin=self.node_id,
            incarnation=self.incarnation,
            reason=reason,
            policy=self.settings.policy,
        )

    @property
    def projector(self) -> Address:
        """Ask it `actors.projector.CatchUp` to have projections.db as new as the log."""
        return self._projector

    def _launch(self, paths: Paths) -> None:
        feed = CommitFeed(paths.log, driver=paths.driver)
        journal = ChildSpec(
            "journal",
            lambda: self._journal(paths, feed),
            shutdown=10,
            start_timeout=on_nats.START_TIMEOUT_S,
        )
        core = ChildSpec(
            "core",
            lambda: Supervisor(self._core(paths, feed, journal.address)),
            shutdown=STOP_TIMEOUT_S,
            start_timeout=STOP_TIMEOUT_S,
        )
        self._root = Supervisor([journal, core], strategy="rest_for_one")
        address = Address("node")
        self._root.launch(address, self._system)
        address.incarnation.ended.add_done_callback(lambda _: self._ended())

    def _ended(self) -> None:
        self._stopped.set()

    def _journal(self, paths: Paths, feed: CommitFeed) -> Journal:
        """With a new journal everything starts anew: the node counts as another incarnation of itself."""
        self.incarnation = fresh("start")
        me = Member(self.node_id, self.incarnation, seniority=-self._system.clock.now())
        if self.settings.cluster_nats:
            return on_nats.journal(me, paths, feed, self.settings)
        return Journal(me, paths, feed, self._timing() if self.settings.cluster else ALONE)

    def _core(self, paths: Paths, feed: CommitFeed, journal: Address) -> list[ChildSpec]:
        """The actors that can be restarted one by one, in the order of their start."""
        settings = self.settings
        shelf, hub = PromptShelf(), TokenHub(self.node_id)
        archive = ChildSpec("archive", lambda: Archive(paths))
        router = ChildSpec(
            "router", lambda: self._router(journal, master.address, archive.address, hub, reporter)
        )
        backfiller = ChildSpec("backfiller", lambda: self._backfiller(paths, journal, router.address))
        master = ChildSpec(
            "master",
            lambda: Master(
                self.node_id, self.incarnation, journal, router.address, paths, feed, settings.policy
            ),
        )
        reporter = self._reports_to(master.address)
        projector = ChildSpec("projector", lambda: Projector(paths, settings.projections_path, feed))
        self._projector = projector.address
        downloader = ChildSpec("downloader", lambda: self._downloader(paths, reporter))
        runners = ChildSpec("runners", Supervisor, shutdown=30)
        worker = ChildSpec(
            "worker",
            lambda: Worker(
                self.node_id,
                self.incarnation,
                settings,
                paths,
                feed,
                reporter,
                runners.address,
                downloader.address,
                telemetry.address,
                shelf,
                hub,
            ),
        )
        # A worker that restarts knows none of the runners that the last one had started.
        work = ChildSpec("work", lambda: Supervisor([runners, worker], strategy="one_for_all"), shutdown=40)
        balancing = self._balancing(paths, feed, master.address)
        telemetry = ChildSpec("telemetry", lambda: self._telemetry(reporter))
        children = [master, projector, downloader, work, balancing, telemetry]
        if settings.cluster:
            children[1:1] = [archive, router, backfiller]
        if self._server is not None:
            server = self._server
            me, asked = (self.node_id, self.incarnation), (master.address, downloader.address)
            gateway = partial(Gateway, *me, settings, paths, feed, *asked, shelf, hub)
            children.append(ChildSpec("api", lambda: server(gateway()), shutdown=10))
        return children

    def _reports_to(self, master: Address) -> Reporter:
        """A reporter in place of the last one, whose master is gone."""
        if self._reporter is not None:
            self._reporter.close()
        self._master, self._reporter = master, Reporter(master, self._system.clock)
        return self._reporter

    def _balancing(self, paths: Paths, feed: CommitFeed, master: Address) -> ChildSpec:
        """The EPLB controllers and who starts them: anew with it, as it knows only its own."""
        controllers = ChildSpec("controllers", Supervisor)
        policy = self.settings.policy
        balancers = ChildSpec(
            "balancers", lambda: Balancers(self.node_id, policy, paths, feed, master, controllers.address)
        )
        both = [controllers, balancers]
        return ChildSpec("balancing", lambda: Supervisor(both, strategy="one_for_all"), shutdown=10)

    def _router(
        self, journal: Address, master: Address, archive: Address, hub: TokenHub, reporter: Reporter
    ) -> Router:
        me = as_peer(self.settings, self.node_id)
        return Router(me, self._transport(), journal, master, archive, hub, reporter)

    def _backfiller(self, paths: Paths, journal: Address, router: Address) -> Backfiller:
        return Backfiller(paths, journal, router, streamed=bool(self.settings.cluster_nats))

    # What a simulation sets otherwise or has stand-ins for

    def _timing(self) -> Timing:
        return Timing()

    def _transport(self) -> Transport:
        settings = self.settings
        return on_nats.transport(settings) if settings.cluster_nats else Mesh(mesh_settings(settings))

    def _downloader(self, paths: Paths, reporter: Reporter) -> Actor:
        return Downloader(self.node_id, self.settings, paths, reporter)

    def _telemetry(self, reporter: Reporter) -> Actor:
        return Telemetry(self._identity(), self.settings, reporter)

    def _identity(self) -> Identity:
        peer = as_peer(self.settings, self.node_id)
        return Identity(
            node_id=self.node_id,
            incarnation=self.incarnation,
            name=peer.name,
            version=peer.version,
            api_url=peer.api_url,
            host=_host(self.settings),
        )

    def _observe(self, incident: ActorIncident) -> None:
        """Put what goes wrong with actors on the record, and into the log of the process."""
        log_incident(incident)
        if incident.action == "crashed" or self._reporter is None:
            return  # what its supervisor does about it follows, and is the one record
        self._reporter.send(
            cmd.ReportActor(
                command_id=fresh("report"),
                origin=self.node_id,
                actor=incident.actor,
                error=incident.error,
                action=incident.action,
                restarts=incident.restarts,
                dead_letters=incident.dead_letters,
            )
        )


def read_past(paths: Paths, at_most: int = READ_AT_START) -> None:
    """Have a snapshot from which all actors can start within their time, however long the log has become.

    What may be wrong with the log is said by the journal, which opens it for writing.
    """
    if paths.log.exists():
        with contextlib.suppress(LogError, OSError), paths.reader() as reader:
            save_near_head(reader, paths.snapshots, at_most)


def _host(settings: Settings) -> str:
    """The address at which the ranks on other nodes find those on this one."""
    if settings.cluster_host not in ("", "0.0.0.0", "::"):
        return settings.cluster_host
    if settings.cluster_nats:
        return on_nats.host(settings)
    outward = [i.address for i in interfaces() if not i.loopback and ":" not in i.address]
    secured = settings.cluster_secret or settings.cluster_certificate
    return outward[0] if secured and outward else "127.0.0.1"


def node_id(settings: Settings) -> str:
    """The id of this machine, settled at the first start and kept in the home. Raises `StartFailed`."""
    try:
        found = id_of(settings)
    except TransportError as error:
        raise StartFailed(Cause(code="start_failed", message=str(error))) from error
    if not settings.node_id_path.exists():
        write_durably(settings.node_id_path, f"{found}\n".encode())
    return found


def raise_file_limit() -> None:
    """Raise the soft limit of open files as far as the hard one and the system allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(max(soft, FILE_LIMIT), hard)
    while target > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (ValueError, OSError) as error:  # macOS has a limit for each process beside the hard one
            logger.info("No limit of %d open files: %s", target, error)
            target //= 2
        else:
            return
