"""A power cut takes observations at most: acknowledged decisions are on disk, and the log is whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest
from log_samples import finish, reading

from events.check import check
from events.drivers import ApswDriver, Connection
from events.log import EventLog

pytest.importorskip("apsw")
import apsw
from power_cut import Disk, PowerCutVFS, restore

CUTS = 40


class Cutting(ApswDriver):
    """apsw on a disk whose power can be cut. Readers of the test use the plain driver."""

    def __init__(self, vfs: str) -> None:
        super().__init__()
        self._vfs = vfs

    def open(self, path: Path, *, write: bool) -> Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        return cast(Connection, apsw.Connection(str(path), flags=flags, vfs=self._vfs))


def run(home: Path, seed: int, kept: float) -> tuple[int, int, int]:
    """Write until the power fails, look: (decisions acknowledged as durable, all that were begun, found)."""
    dice = random.Random(seed)
    disk = Disk(dice.randint(60, 900), kept, dice)
    vfs = PowerCutVFS(f"power-cut-{seed}", disk)
    home.mkdir()
    (home / "after").mkdir()
    log = EventLog.open(home / "log.db", driver=Cutting(f"power-cut-{seed}"))
    durable = 0
    while True:
        observation = dice.random() < 0.6
        count = dice.randint(1, 12)
        answers = log.append(
            [(reading if observation else finish)(log.last_decision + n) for n in range(count)]
        )
        if disk.left is not None:
            break
        if not observation:
            durable = answers[-1].decision_id
        if dice.random() < 0.05:
            log.checkpoint()
    begun = log.last_decision
    log.close()
    vfs.unregister()
    restore(disk.left, home / "after")
    return durable, begun, recovered(home / "after" / "log.db", seed)


def recovered(path: Path, seed: int) -> int:
    """Open the log that a cut has left: it is whole, and has so many decisions."""
    EventLog.open(path).close()
    found = check(path, full=True)
    assert found.ok, f"seed {seed}: {found}"
    return found.decisions


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9], ids=lambda kept: f"{kept:.0%} of the unsynced sectors kept")
def test_no_durable_decision_is_lost(tmp_path: Path, kept: float):
    lost = 0
    for seed in range(CUTS):
        durable, begun, found = run(tmp_path / str(seed), seed, kept)
        assert durable <= found <= begun, f"seed {seed}"
        lost += begun - found
    assert lost, "no cut took anything: the disk of this test does not lose what was not synced"
