"""What the deciders of expert placement compute, with `actors.eplb`: imported only where EPLB is on.

Numbers that go into the log are rounded: sums of floats differ in their last bits from machine to machine,
and deciding again elsewhere is to give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from actors.eplb import gate, metrics, windows
from actors.eplb.moves import moves
from actors.eplb.policy import POLICIES, propose
from actors.eplb.problem import Budget, Loads, Placement, Topology
from actors.expert_placement import expert_bytes
from actors.refusal import Rejected
from engines.experts import maps
from events.expert_commands import ReportExpertLoad
from events.expert_events import LoadWindowClosed
from events.experts import Balance, EplbPolicy, EplbSettings, LayerMoves, SlotMove
from events.values import Cause, ModelCard
from events.values import Placement as InstancePlacement
from projections.state import Experts, LoadReading


class Weighed(NamedTuple):
    """A proposal as the gate left it; the fields are those of `events.expert_events.RebalanceDecided`."""

    policy: EplbPolicy
    policy_version: int
    balance: Balance
    layers: list[LayerMoves]
    moves: int
    bytes_total: int
    bytes_busiest: int
    saving_s: float
    cost_s: float
    adopted: bool
    reason: str


def digest(layer: Sequence[int], n_experts: int) -> str:
    """What every rank must answer that computes a layer by this map."""
    return maps.digest(layer, maps.lookup_table(layer, n_experts))


def read_window(experts: Experts, report: ReportExpertLoad) -> LoadWindowClosed | Cause:
    """A load window by logical expert and by rank, or why it is refused."""
    migration = experts.migration
    if migration is not None and migration.stage == "committed":
        return _between_maps(report, migration.layers[migration.position].layer)
    counted = windows.Counted(number=report.window, epoch=report.epoch, counts=report.counts)
    expected = windows.Expected(
        placement=as_array(experts.maps),
        experts=experts.experts,
        ranks=experts.ranks,
        epoch=experts.epoch,
        after=experts.window,
    )
    try:
        read = windows.read(counted, expected)
    except Rejected as refusal:
        return refusal.cause
    return LoadWindowClosed(
        instance_id=report.instance_id,
        window=report.window,
        epoch=report.epoch,
        phase=report.phase,
        steps=report.steps,
        tokens=report.tokens,
        seconds=report.seconds,
        bandwidth=report.bandwidth,
        experts=np.rint(read.experts).astype(int).tolist(),
        ranks=np.rint(read.ranks).astype(int).tolist(),
    )


def _between_maps(report: ReportExpertLoad, layer: int) -> Cause:
    return Cause(
        code="window_of_another_epoch",
        message=f"Window {report.window} was counted before the ranks had applied the new map of layer "
        f"{layer}, which is in the log already.",
        detail={"layer": layer, "epoch": report.epoch},
    )


class Question(NamedTuple):
    """What a policy and the gate are asked about a window: loads are ``[L, E]``, ``old`` maps ``[L, P]``."""

    old: Placement
    loads: Loads
    topology: Topology
    budget: Budget
    gate: gate.Gate
    window: gate.Window


def question(
    experts: Experts, load: LoadReading, card: ModelCard, placement: InstancePlacement, eplb: EplbSettings
) -> Question:
    """The question of a window, the same for the decision and for a what-if about it."""
    topology = topology_of(placement, card)
    size = expert_bytes(card, placement.dtype, placement.expert_format)
    old, loads = as_array(experts.maps), np.asarray(load.experts, np.float64)
    return Question(
        old=old,
        loads=loads,
        topology=topology,
        budget=Budget(expert_bytes=size, max_bytes=eplb.max_bytes),
        gate=gate.Gate(min_tokens=eplb.min_tokens, horizon_s=eplb.horizon_s),
        window=gate.Window(
            tokens=load.tokens,
            seconds=load.seconds,
            row_s=gate.row_seconds(metrics.rank_loads(old, loads, topology.ranks), load.seconds),
            bandwidth=load.bandwidth,
        ),
    )


def weigh(
    experts: Experts,
    load: LoadReading,
    card: ModelCard,
    placement: InstancePlacement,
    policy: EplbPolicy | None,
) -> Weighed:
    """What ``policy`` (default: the instance's own) makes of a window, and whether that pays."""
    eplb = placement.eplb or EplbSettings()
    name = policy or eplb.policy
    asked = question(experts, load, card, placement, eplb)
    old, loads, topology, budget = asked.old, asked.loads, asked.topology, asked.budget
    proposal = propose(POLICIES[name], old, loads, topology, budget)
    verdict = gate.judge(old, proposal, loads, topology, budget, gate=asked.gate, window=asked.window)
    chosen = verdict.proposal
    return Weighed(
        policy=name,
        policy_version=POLICIES[name].version,
        balance=Balance(
            now=_rounded(chosen.now), predicted=_rounded(chosen.predicted), bound=_rounded(chosen.bound)
        ),
        layers=_layers(old, chosen.placement, topology),
        moves=int(chosen.moved),
        bytes_total=int(chosen.bytes_total),
        bytes_busiest=int(chosen.bytes_busiest),
        saving_s=_rounded(verdict.saving_s),
        cost_s=_rounded(verdict.cost_s),
        adopted=verdict.adopted,
        reason=verdict.reason,
    )


def as_array(layers: Sequence[Sequence[int]]) -> Placement:
    """Maps of the log as the policies take them."""
    return np.asarray(layers, np.int32)


def topology_of(placement: InstancePlacement, card: ModelCard) -> Topology:
    """The node of each rank, numbered as they first come, and the router's expert groups."""
    names = list(dict.fromkeys(rank.node_id for rank in placement.ranks))
    nodes = tuple(names.index(rank.node_id) for rank in placement.ranks)
    return Topology(nodes=nodes, groups=card.expert_groups)


def _layers(old: Placement, new: Placement, topology: Topology) -> list[LayerMoves]:
    return [
        LayerMoves(
            layer=layer,
            map=new[layer].tolist(),
            moves=[SlotMove(slot=slot, expert=expert, source=source) for slot, expert, source in each],
        )
        for layer, each in enumerate(moves(old, new, topology))
        if each
    ]


def _rounded(value: float) -> float:
    """Six digits after the point: far from where two machines' sums part."""
    return round(float(value), 6)
