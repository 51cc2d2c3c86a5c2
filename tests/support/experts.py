"""Instances whose experts are balanced, on paper: their runner of rank 0 reports as a real one does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support import expert_commands
from support.cluster import LIFE, NODE, POLICY, Cluster, device, engine
from support.expert_commands import CARD, EPLB, SKEWED

from events import expert_commands as cmd
from events.base import Event
from events.experts import EplbSettings, LayerMoves
from events.status import Connected, Connecting
from projections.state import Experts, Migration


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
        return expert_commands.migration(self.experts)

    @property
    def at_hand(self) -> LayerMoves:
        return expert_commands.at_hand(self.experts)

    # What rank 0 reports

    def window(self, loads: Sequence[float | None] = SKEWED, **changes: Any) -> list[Event]:
        """A load window closes, with these rows of each expert in every layer."""
        return self.do(self.load(loads, **changes))

    def load(self, loads: Sequence[float | None] = SKEWED, **changes: Any) -> cmd.ReportExpertLoad:
        return expert_commands.load(*self._said, loads, **changes)

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
        return expert_commands.staged(*self._said, **changes)

    def applied(self, **changes: Any) -> list[Event]:
        return self.do(self.applying(**changes))

    def applying(self, **changes: Any) -> cmd.ReportLayerApplied:
        return expert_commands.applied(*self._said, POLICY, **changes)

    def expire(self, **changes: Any) -> list[Event]:
        return self.do(self.expiring(**changes))

    def expiring(self, **changes: Any) -> cmd.ExpireMigration:
        return expert_commands.expired(self.next_id(), self.experts, POLICY, **changes)

    def migrated(self) -> None:
        """Every layer of the open migration is staged and applied."""
        while self.experts.migration is not None:
            self.staged()
            self.applied()

    @property
    def _said(self) -> tuple[str, str, str, Experts]:
        """What every report has: its id, its node, who speaks, of what."""
        return self.next_id(), NODE, (self.runners or ["runner-none"])[0], self.experts


def names(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]
