"""A log of an instance whose experts are balanced, from decisions of the real decider."""

from __future__ import annotations

from pathlib import Path

from support.cluster import NODE
from support.experts import Mixture

from actors.decider import NAME, VERSION
from events import commands as cmd
from events.base import Command, Event
from events.commands import Facts
from events.log import EventLog
from events.record import Draft
from events.values import Cause

FIRST = [100.0, 100.0, 4000.0, 100.0, 4000.0, 100.0, 4000.0, 100.0]
"""Rows of each expert, in every layer: all the hot ones begin on one rank."""
THEN = [FIRST[-1], *FIRST[:-1]]
LOST = Cause(code="stage_failed", message="A rank could not stage the layer.")


class RecordedMixture(Mixture):
    """As `Mixture`, and every decision that leaves events is kept as a draft for a log."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        super().__init__()

    def do(self, command: Command) -> list[Event]:
        epoch = self.state.epoch + isinstance(command, cmd.StartEpoch)
        events = super().do(command)
        facts = Facts(now=self.now, seed=f"seed-{self._commands}", epoch=epoch, node_id=NODE)
        if events:
            self.drafts.append(
                Draft(command=command, facts=facts, decider=NAME, decider_version=VERSION, events=events)
            )
        self.now += 0.25
        return events

    def write(self, path: Path) -> Path:
        """The log of all that was decided."""
        log = EventLog.open(path)
        log.append(self.drafts)
        log.close()
        return path


def expert_log(path: Path) -> tuple[Path, str]:
    """Three epochs of an instance; its id.

    Epoch 2 was tried twice, as a rank could not stage a layer. Epoch 3 came with another load, and has a
    window that it was left as it is after.
    """
    mixture = RecordedMixture()
    mixture.all_ready()
    for load, cause in ((FIRST, LOST), (FIRST, None), (THEN, None)):
        mixture.window(load)
        mixture.rebalance()
        mixture.staged(cause=cause, slots=[]) if cause else mixture.migrated()
    mixture.window(THEN, tokens=8)
    mixture.rebalance()
    return mixture.write(path), mixture.instance_id
