"""The projector beside a log that is rewound while it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.histories import History

from actors.actor import spawn
from actors.projector import CatchUp, Projector
from actors.replica import Paths
from actors.system import ActorIncident, ActorSystem
from events.drivers import STDLIB
from events.feed import CommitFeed
from events.log import EventLog
from events.reader import LogReader


def test_a_rewind_between_two_pages_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: ActorSystem, incidents: list[ActorIncident]
) -> None:
    log = EventLog.open(tmp_path / "log.db")
    log.append(History(3).take(450))
    with_events = LogReader._with_events

    def then_rewound(reader: LogReader, rows: list[tuple[object, ...]]) -> list[object]:
        page = with_events(reader, rows)
        if page and log.last_decision > 100:
            log.rewind(100, "2/b/run-b", "shorter", [], at=1.0)
        return page

    monkeypatch.setattr(LogReader, "_with_events", then_rewound)
    paths = Paths(tmp_path / "log.db", tmp_path / "snapshots", STDLIB)
    projector = spawn(
        Projector(paths, tmp_path / "projections.db", CommitFeed(paths.log)), "projector", system
    )
    assert projector.ask(CatchUp(), 20) == 100
    assert incidents == []
    log.close()
