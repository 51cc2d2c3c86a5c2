"""One run from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from support.sim.checks import Checks
from support.sim.clients import Clients
from support.sim.disk import Decision, Disk
from support.sim.faults import Faults
from support.sim.network import Network, Weather
from support.sim.node import Node
from support.sim.world import World

from actors.ordering.core import Core

CALM = Weather()
SLOW = Weather(delay=(0.001, 0.25))
ROUGH = Weather(delay=(0.0005, 0.05))
AWFUL = Weather(loss=0.05, doubled=0.05, overtaking=True, delay=(0.0005, 0.05))

FAULTS_S = 45.0
QUIET_S = 20.0
"""Seconds after the last fault in which all must have become well,"""
DRAIN_S = 120.0
"""and so many more at most for the work that has piled up: a node's reports go one by one, each of them for
up to half a second over slow links, and there may be hundreds."""


class Outcome(NamedTuple):
    """What came to pass in a run that broke nothing."""

    nodes: int
    virtual_s: float
    happened: int
    decisions: int
    rejected: int
    epochs: int
    sent: int
    answered: int


def simulate(
    seed: int,
    *,
    crashes_only: bool | None = None,
    make_disk: Callable[[], Disk] = Disk,
    make_core: Callable[..., Core] = Core,
) -> Outcome:
    """Run a cluster of two to five nodes. Raises `support.sim.checks.Broken` where an invariant breaks."""
    world = World(seed)
    crashes_only = world.random.random() < 0.3 if crashes_only is None else crashes_only
    weather = world.random.choice((CALM, SLOW, SLOW) if crashes_only else (CALM, ROUGH, AWFUL))
    network, checks = Network(world, weather), Checks(crashes_only=crashes_only)
    names = [f"n{k}" for k in range(world.random.choice((2, 3, 3, 4, 5)))]
    nodes = [Node(world, network, checks, name, make_disk, make_core) for name in names]
    for node in nodes:
        world.after(world.between(0.0, 1.0) if world.random.random() < 0.8 else 6.0, node.start)
    try:
        return _play(world, network, nodes, checks)
    finally:
        Decision.forget_all()


def _play(world: World, network: Network, nodes: list[Node], checks: Checks) -> Outcome:
    clients = Clients(world, nodes, checks, every=0.4)
    faults = Faults(world, network, nodes, crashes_only=checks.crashes_only)
    world.run(FAULTS_S)
    faults.stop()
    clients.close()
    world.run(FAULTS_S + QUIET_S)
    checks.are_one(list(nodes))
    while world.now < FAULTS_S + QUIET_S + DRAIN_S and not _at_rest(nodes):
        world.run(world.now + 5.0)
    checks.finish(list(nodes))
    return Outcome(
        nodes=len(nodes),
        virtual_s=world.now,
        happened=world.happened,
        decisions=len(nodes[0].disk.rows),
        rejected=sum(len(b.decisions) for node in nodes for b in node.disk.rejected),
        epochs=checks.epochs,
        sent=clients.sent,
        answered=clients.answered,
    )


def _at_rest(nodes: list[Node]) -> bool:
    """All work is done, and no decision is on its way to a follower."""
    return len({len(node.disk.rows) for node in nodes}) == 1 and not any(node.has_work for node in nodes)
