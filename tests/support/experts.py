"""Instances whose experts are balanced, on paper: their runner of rank 0 reports as a real one does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from support.cards import MIXTURE
from support.cluster import LIFE, NODE, POLICY, Cluster, device, engine

from actors.deciding.balancing import digest
from events import expert_commands as cmd
from events import expert_events as ev
from events.base import Event
from events.experts import EplbSettings, LayerMoves, StagedSlot
from events.status import Connected, Connecting
from events.values import Cause
from projections.state import Experts, Migration

CARD = msgspec.structs.replace(MIXTURE, n_moe_layers=3)
"""A mixture with 8 experts in each of 3 layers."""
EPLB = EplbSettings(redundant_experts=2, stage_timeout_s=5.0, apply_timeout_s=3.0)
BROKEN = Cause(code="stage_failed", message="A rank could not stage the layer.")
LATE = Cause(code="deadline_missed", message="The layer was not there in time.")


class Mixture(Cluster):
    """A cluster of one node with two devices, and an instance of `CARD` over both of them."""

    def __init__(self, *rules: Any) -> None:
        super().__init__(*rules)
        self.two_devices()
        self.model(CARD)
        self.instance_id = self.place_mixture()

    def two_devices(self, incarnation: str = "run-1") -> list[Event]:
        both = ["cpu:0", "cpu:1"]
        spreads = engine(both, engine="torch", strategies=["expert"])
        return self.node(
            NODE, incarnation, devices=[device(device_id) for device_id in both], engines=[spreads]
        )

    def place_mixture(self, ranks: int = 2, eplb: EplbSettings | None = EPLB) -> str:
        return self.place(CARD.model_id, shard_strategy="expert", ranks=ranks, eplb=eplb)

    def all_ready(self) -> None:
        """Bring the runners of both ranks to Ready."""
        for status in (LIFE[0], Connecting(), Connected(), *LIFE[1:]):
            for runner_id in self.runners:
                self.runner(status, runner_id=runner_id)

    @property
    def runners(self) -> list[str]:
        placement = self.instance(self.instance_id).placement
        return [rank.runner_id for rank in placement.ranks] if placement else []

    @property
    def experts(self) -> Experts:
        return self.state.experts[self.instance_id]

    @property
    def migration(self) -> Migration:
        assert self.experts.migration is not None
        return self.experts.migration

    @property
    def at_hand(self) -> LayerMoves:
        return self.migration.layers[self.migration.position]

    # What rank 0 reports

    def window(self, loads: Sequence[float | None] | None = None, **changes: Any) -> list[Event]:
        """A load window closes, with these rows of each expert in every layer."""
        return self.do(self.load(loads, **changes))

    def load(self, loads: Sequence[float | None] | None = None, **changes: Any) -> cmd.ReportExpertLoad:
        by_expert = SKEWED if loads is None else loads
        counts = [[_part(by_expert[e], layer.count(e)) for e in layer] for layer in self.experts.maps]
        fields = {
            "instance_id": self.instance_id,
            "runner_id": (self.runners or ["runner-none"])[0],
            "window": self.experts.window + 1,
            "epoch": self.experts.epoch,
            "phase": "all",
            "steps": 100,
            "tokens": 4096,
            "seconds": 2.0,
            "bandwidth": 1e9,
            "counts": counts,
        }
        return cmd.ReportExpertLoad(command_id=self.next_id(), origin=NODE, **(fields | changes))  # type: ignore[arg-type]

    def rebalance(self, window: int | None = None) -> list[Event]:
        number = self.experts.window if window is None else window
        return self.do(cmd.Rebalance(command_id=self.next_id(), instance_id=self.instance_id, window=number))

    def planned(self) -> Migration:
        """Ready, with a migration just planned after a skewed window."""
        self.all_ready()
        self.window()
        self.rebalance()
        return self.migration

    def staged(self, **changes: Any) -> list[Event]:
        return self.do(self.staging(**changes))

    def staging(self, **changes: Any) -> cmd.ReportLayerStaged:
        slots = [StagedSlot(slot=move.slot, sent="ab", staged="ab") for move in self.at_hand.moves]
        return cmd.ReportLayerStaged(
            command_id=self.next_id(), origin=NODE, **(self._named(slots=slots, bytes=64) | changes)
        )

    def applied(self, **changes: Any) -> list[Event]:
        return self.do(self.applying(**changes))

    def applying(self, **changes: Any) -> cmd.ReportLayerApplied:
        digests = [digest(self.at_hand.map, self.experts.experts)] * self.experts.ranks
        return cmd.ReportLayerApplied(
            command_id=self.next_id(), origin=NODE, **(self._named(digests=digests, policy=POLICY) | changes)
        )

    def expire(self, **changes: Any) -> list[Event]:
        return self.do(self.expiring(**changes))

    def expiring(self, **changes: Any) -> cmd.ExpireMigration:
        fields = self._named(cause=LATE, policy=POLICY)
        del fields["runner_id"], fields["seconds"]
        return cmd.ExpireMigration(command_id=self.next_id(), **(fields | changes))

    def migrated(self) -> None:
        """Every layer of the open migration is staged and applied."""
        while self.experts.migration is not None:
            self.staged()
            self.applied()

    def _named(self, **more: Any) -> dict[str, Any]:
        return {
            "instance_id": self.instance_id,
            "runner_id": self.runners[0],
            "migration_id": self.migration.migration_id,
            "layer": self.at_hand.layer,
            "seconds": 0.02,
            **more,
        }


SKEWED = [100.0, 100.0, 3000.0, 100.0, 3000.0, 100.0, 3000.0, 100.0]
"""Rows of each expert. As they are first placed, rank 0 has the three that most of it goes to."""
EVEN = [1000.0] * 8


def _part(rows: float | None, copies: int) -> float | None:
    """What one of an expert's copies computed."""
    return None if rows is None else rows / copies


def names(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


EXPERT_EVENTS = (
    ev.ExpertsPlaced,
    ev.LoadWindowClosed,
    ev.LoadWindowRefused,
    ev.RebalanceDecided,
    ev.MigrationPlanned,
    ev.LayerStaged,
    ev.LayerCommitted,
    ev.LayerApplied,
    ev.MigrationAborted,
    ev.ExpertEpochSealed,
)
