"""Events of expert placement and its load balancer, see `events.experts` for the terms."""

from __future__ import annotations

from events.base import Event
from events.experts import Balance, EplbPolicy, LayerMoves, LoadPhase, MigrationStage
from events.values import Cause


class ExpertsPlaced(Event, frozen=True):
    """The experts of an instance have a first placement, or, with another number of ranks, a new one.

    ``maps[layer][slot]`` is the logical expert in that slot, for each MoE layer in the model's order.
    """

    SUBJECT = "instance_id"
    instance_id: str
    epoch: int
    ranks: int
    experts: int
    """Logical experts of a layer."""
    maps: list[list[int]]
    reason: str


class LoadWindowClosed(Event, frozen=True):
    """The load of ``steps`` engine steps under one epoch's placement.

    ``experts[layer][expert]`` are rows computed by the logical expert, in all its replicas;
    ``ranks[layer][rank]`` those that each rank computed.
    """

    SUBJECT = "instance_id"
    OBSERVATION = True
    instance_id: str
    window: int
    """Number of the window, counted from 1 for each runner of rank 0."""
    epoch: int
    phase: LoadPhase
    steps: int
    tokens: int
    """Real tokens in the counted batches."""
    seconds: float
    """Time of those steps."""
    bandwidth: float
    """Bytes per second in which a rank can receive experts, as measured."""
    experts: list[list[int]]
    ranks: list[list[int]]


class LoadWindowRefused(Event, frozen=True):
    """A load window was not taken: it has numbers that are none, no load, or belongs to another epoch."""

    SUBJECT = "instance_id"
    instance_id: str
    window: int
    epoch: int
    cause: Cause


class RebalanceDecided(Event, frozen=True):
    """The controller weighed a proposal of its policy; ``reason`` says why it was adopted or not."""

    SUBJECT = "instance_id"
    instance_id: str
    window: int
    epoch: int
    policy: EplbPolicy
    policy_version: int
    balance: Balance
    layers: int
    """Layers that the proposal changes, as far as they pay."""
    moves: int
    """Experts that ranks must receive."""
    bytes_total: int
    bytes_busiest: int
    saving_s: float
    """Seconds that the proposal saves over the horizon, as predicted."""
    cost_s: float
    adopted: bool
    reason: str


class MigrationPlanned(Event, frozen=True):
    """Experts are going to move, layer by layer in this order; the first one is being staged."""

    SUBJECT = "instance_id"
    instance_id: str
    migration_id: str
    epoch: int
    """The epoch that begins with the first committed layer."""
    layers: list[LayerMoves]


class LayerStaged(Event, frozen=True):
    """Every rank has the rows of a layer in its staging buffers, and their checksums agree."""

    SUBJECT = "instance_id"
    instance_id: str
    migration_id: str
    layer: int
    slots: int
    bytes: int
    seconds: float


class LayerCommitted(Event, frozen=True):
    """The commit point of a layer: from here on its map is this one, whatever crashes."""

    SUBJECT = "instance_id"
    instance_id: str
    migration_id: str
    layer: int
    epoch: int
    map: list[int]


class LayerApplied(Event, frozen=True):
    """Every rank computes the layer by its new map; ``digest`` is that of map and lookup on each of them."""

    SUBJECT = "instance_id"
    instance_id: str
    migration_id: str
    layer: int
    digest: str
    seconds: float
    """How long the batches waited for it."""


class MigrationAborted(Event, frozen=True):
    """A migration ended early. Committed layers stay so; ``layer`` and those after it did not move."""

    SUBJECT = "instance_id"
    instance_id: str
    migration_id: str
    layer: int
    stage: MigrationStage
    cause: Cause


class ExpertEpochSealed(Event, frozen=True):
    """All layers of a migration are applied on all ranks."""

    SUBJECT = "instance_id"
    instance_id: str
    migration_id: str
    epoch: int


ExpertEvent = (
    ExpertsPlaced
    | LoadWindowClosed
    | LoadWindowRefused
    | RebalanceDecided
    | MigrationPlanned
    | LayerStaged
    | LayerCommitted
    | LayerApplied
    | MigrationAborted
    | ExpertEpochSealed
)
