"""What rank 0 of an instance says of its experts, as reports to the decider."""

from __future__ import annotations

from engines import wire
from events import expert_commands as cmd
from events.base import Report
from events.experts import EplbSettings
from events.ids import fresh
from events.values import Placement, Policy

ExpertWord = wire.ExpertLoad | wire.LayerStaged | wire.LayerApplied


def report_of(
    word: ExpertWord, origin: str, instance_id: str, placement: Placement, policy: Policy
) -> Report:
    """The report of a word by the runner of rank 0."""
    runner_id = placement.ranks[0].runner_id
    match word:
        case wire.ExpertLoad():
            return cmd.ReportExpertLoad(
                command_id=fresh("report"),
                origin=origin,
                instance_id=instance_id,
                runner_id=runner_id,
                window=word.window,
                epoch=word.epoch,
                phase=(placement.eplb or EplbSettings()).phase,
                steps=word.steps,
                tokens=word.tokens,
                seconds=word.seconds,
                bandwidth=word.bandwidth,
                counts=word.counts,
            )
        case wire.LayerStaged():
            return cmd.ReportLayerStaged(
                command_id=fresh("report"),
                origin=origin,
                instance_id=instance_id,
                runner_id=runner_id,
                migration_id=word.migration_id,
                layer=word.layer,
                slots=word.slots,
                bytes=word.bytes,
                seconds=word.seconds,
                cause=word.cause,
            )
        case wire.LayerApplied():
            return cmd.ReportLayerApplied(
                command_id=fresh("report"),
                origin=origin,
                instance_id=instance_id,
                runner_id=runner_id,
                migration_id=word.migration_id,
                layer=word.layer,
                digests=word.digests,
                seconds=word.seconds,
                policy=policy,
            )
