"""Commands and reports of the expert-parallel load balancer, see `events.experts` for the terms."""

from __future__ import annotations

from events.base import Command, Report
from events.experts import LoadPhase, StagedSlot
from events.values import Cause, Policy


class ReportExpertLoad(Report, frozen=True):
    """A load window of an instance, as rank 0 gathered it from all ranks.

    ``counts[layer][slot]`` are rows computed in that physical slot, after the computation; null where a
    rank's number was none (NaN). ``epoch`` is the placement that they were counted under.
    """

    instance_id: str
    runner_id: str
    window: int
    epoch: int
    phase: LoadPhase
    steps: int
    tokens: int
    seconds: float
    bandwidth: float
    counts: list[list[float | None]]


class Rebalance(Command, frozen=True):
    """The EPLB controller to the decider: weigh a move of experts by this window."""

    instance_id: str
    window: int


class ReportLayerStaged(Report, frozen=True):
    """All ranks have staged a layer, or (``cause`` given) one of them could not."""

    instance_id: str
    runner_id: str
    migration_id: str
    layer: int
    slots: list[StagedSlot]
    bytes: int
    seconds: float
    cause: Cause | None = None


class ReportLayerApplied(Report, frozen=True):
    """All ranks have applied a layer: the digest of map and lookup on each, by rank."""

    instance_id: str
    runner_id: str
    migration_id: str
    layer: int
    digests: list[str]
    seconds: float
    policy: Policy


class ExpireMigration(Command, frozen=True):
    """The EPLB controller: a layer was not staged, or not applied, within its deadline."""

    instance_id: str
    migration_id: str
    layer: int
    cause: Cause
    policy: Policy


ExpertCommand = ReportExpertLoad | Rebalance | ReportLayerStaged | ReportLayerApplied | ExpireMigration
