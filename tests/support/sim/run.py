"""One run from a seed."""

from __future__ import annotations

import contextlib
import gc
import logging
import secrets
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest import mock

from support.sim.checks import Checks
from support.sim.clients import Clients
from support.sim.faults import Faults
from support.sim.network import Network, Weather
from support.sim.node import Machine, SimulatedNode
from support.sim.runners import Groups, SimulatedRunner
from support.sim.world import World

from actors import archive, router, worker
from actors.journal import Journal, Role
from actors.net import outbox
from actors.net.wire import MAX_RECORD_BYTES
from events import ids

CALM = Weather()
SLOW = Weather(delay=(0.001, 0.25))
ROUGH = Weather(delay=(0.0005, 0.05))
AWFUL = Weather(loss=0.05, doubled=0.05, overtaking=True, delay=(0.0005, 0.05))

FAULTS_S = 30.0
QUIET_S = 15.0
"""Seconds after the last fault in which all must have become well,"""
DRAIN_S = 120.0
"""and so many more at most for the work that has piled up."""

_MEMORY = Path("/dev/shm")


class Outcome(NamedTuple):
    """What came to pass in a run that broke nothing."""

    nodes: int
    virtual_s: float
    happened: int
    decisions: int
    rejected: int
    epochs: int
    bases: int
    adopted: int
    sent: int
    answered: int
    last_hash: str


class Bias(NamedTuple):
    """What a seed would draw, given instead; see `Checks`, `Weather`, `World` and `Faults`."""

    crashes_only: bool | None = None
    weather: Weather | None = None
    sloth: float | None = None
    ambush: float | None = None


def simulate(seed: int, bias: Bias = Bias()) -> Outcome:  # noqa: B008 - it is immutable
    """Run a cluster of two to five nodes. Raises `support.sim.checks.Broken` where an invariant breaks."""
    world = World(seed)
    drawn = world.random.random() < 0.3
    crashes_only = drawn if bias.crashes_only is None else bias.crashes_only
    weather = world.random.choice((CALM, SLOW, SLOW) if crashes_only else (CALM, ROUGH, AWFUL))
    sloth, ambush = world.random.choice((0.0, 0.0, 0.01, 0.1)), world.random.choice((0.0, 0.0, 0.0, 0.2))
    world.sloth = sloth if bias.sloth is None else bias.sloth
    network = Network(world, bias.weather or weather)
    checks, groups = Checks(world, crashes_only=crashes_only), Groups()
    names = [f"n{k}" for k in range(world.random.choice((2, 3, 3, 4, 5)))]
    root = Path(tempfile.mkdtemp(prefix="cuebook-sim-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        with _substituted(world, groups, checks), _long_from(world.random.choice((20_000, 20))):
            machines = [Machine(world, network, groups, checks, name, root) for name in names]
            for machine in machines:
                late = world.between(0.0, 1.0) if world.random.random() < 0.8 else world.between(5.0, 20.0)
                world.after(late, machine.start)
            faults = Faults(world, network, machines, checks, ambush if bias.ambush is None else bias.ambush)
            outcome = _play(world, faults, machines, checks)
            for machine in machines:
                machine.end(power=False)
            return outcome
    finally:
        shutil.rmtree(root)


def attempt(seed: int) -> Outcome | str:
    """The outcome, or how the run broke."""
    try:
        return simulate(seed)
    except Exception as broken:
        return f"seed {seed}: {type(broken).__name__}: {broken}"


@contextlib.contextmanager
def _substituted(world: World, groups: Groups, checks: Checks) -> Iterator[None]:
    """Chance comes from the seed, runners are simulated, and no process is ever killed by its number."""
    log = logging.getLogger()
    before = log.handlers[:], log.level
    log.handlers[:] = [checks]
    log.setLevel(logging.ERROR)
    gc.collect()
    gc.disable()  # coroutines of ended processes draw from chance when they are swept up
    try:
        with (
            warnings.catch_warnings(
                action="ignore", category=RuntimeWarning
            ),  # of requests to ended processes
            mock.patch.object(ids, "secrets", _Chance(world.random)),
            mock.patch.object(worker, "RunnerSupervisor", partial(SimulatedRunner, groups)),
            mock.patch.object(worker, "kill_orphan"),
            mock.patch.object(Journal, "_take_role", _observed(Journal._take_role, checks)),
            # Links here may lose a message and live on: only time tells a node that waits for an answer.
            mock.patch.object(router, "ARCHIVE_TIMEOUT_S", 3.0),
            # What may be lost or overtaken is whole messages: of parts of one no link loses any.
            mock.patch.object(outbox, "FRAME_BYTES", MAX_RECORD_BYTES),
        ):
            yield
    finally:
        gc.enable()
        log.handlers[:] = before[0]
        log.setLevel(before[1])


@contextlib.contextmanager
def _long_from(decisions: int) -> Iterator[None]:
    """From so many decisions on a new node begins with a base, and takes the past later."""
    with (
        mock.patch.object(archive, "LONG", decisions),
        mock.patch.object(archive, "MARGIN", decisions // 2),
    ):
        yield


def _observed(take_role: Callable[[Journal, Role], None], checks: Checks) -> Callable[[Journal, Role], None]:
    def observed(journal: Journal, role: Role) -> None:
        take_role(journal, role)
        checks.works_in(journal._me.node_id, journal._core.epoch)

    return observed


class _Chance:
    """Stands for the module ``secrets`` on the thread that simulates.

    A node that another test has left behind would draw as well, at moments that no seed knows.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._thread = threading.get_ident()

    def token_hex(self, n: int) -> str:
        if threading.get_ident() != self._thread:
            return secrets.token_hex(n)
        return f"{self._random.getrandbits(8 * n):0{2 * n}x}"


def _play(world: World, faults: Faults, machines: list[Machine], checks: Checks) -> Outcome:
    clients = Clients(world, machines, checks, every=world.random.choice((0.3, 0.5, 1.5)))
    world.run(FAULTS_S)
    faults.stop()
    clients.close()
    world.run(FAULTS_S + QUIET_S)
    checks.are_one(_nodes(machines))
    while world.now < FAULTS_S + QUIET_S + DRAIN_S and not _at_rest(machines, clients):
        world.run(world.now + 1.7)
    if clients.open_streams():
        checks.breaks(f"clients wait for ever: {clients.open_streams()}")
    checks.finish(machines)
    return Outcome(
        nodes=len(machines),
        virtual_s=world.now,
        happened=world.happened,
        decisions=len(machines[0].copy.rows),
        rejected=checks.rejected,
        epochs=checks.epochs,
        bases=checks.bases,
        adopted=len(checks.adopted(machines[0].copy)),
        sent=clients.sent,
        answered=clients.answered,
        last_hash=machines[0].copy.rows[-1].hash,
    )


def _nodes(machines: list[Machine]) -> list[SimulatedNode]:
    return [machine.node for machine in machines if machine.node is not None]


def _at_rest(machines: list[Machine], clients: Clients) -> bool:
    """All work is done, and no decision is on its way to a follower."""
    if len({len(machine.copy.rows) for machine in machines}) > 1 or clients.open_streams():
        return False
    open_tasks = any(machine.copy.state.tasks for machine in machines)
    return not open_tasks and not any(node.reports_waiting for node in _nodes(machines))
