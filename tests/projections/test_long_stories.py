"""Stories of an instance whose load balancer has closed many windows: no more is kept than is told."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.expert_log import expert_log

from events.commands import CancelTasks, Facts
from events.expert_events import LoadWindowClosed
from events.log import EventLog
from events.reader import LogReader
from events.record import Draft, Recorded
from projections.heat_map import heat_map
from projections.why import why
from projections.why_experts import why_epoch

LATER = 24
"""Windows that are closed after all that there is to tell, of 5120 experts each."""


class Watched:
    """A reader that counts the load windows that it has given."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.windows = 0

    def events(self, **wanted: Any) -> Iterator[Recorded]:
        for recorded in self._reader.events(**wanted):
            self.windows += isinstance(recorded.event, LoadWindowClosed)
            yield recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A log, and the instance that it tells of."""
    path, instance_id = expert_log(tmp_path_factory.mktemp("windows") / "log.db")
    with LogReader.open(path) as reader:
        *_, last = reader.events(types=["LoadWindowClosed"])
    assert isinstance(last.event, LoadWindowClosed)
    loads = [[1000 + layer * expert for expert in range(256)] for layer in range(20)]
    log = EventLog.open(path)
    for n in range(LATER):
        window = msgspec.structs.replace(last.event, window=100 + n, experts=loads)
        facts = Facts(now=last.at + n, seed="", epoch=last.epoch, node_id=last.origin)
        command = CancelTasks(command_id=f"later-{n}", task_ids=[], reason="")
        log.append([Draft(command=command, facts=facts, decider="d", decider_version=1, events=[window])])
    log.close()
    return path, instance_id


def test_an_instance_and_its_runner_are_told_of_without_a_window(told: tuple[Path, str]) -> None:
    path, instance_id = told
    with LogReader.open(path) as reader:
        watched = Watched(reader)
        (placed,) = reader.events(types=["InstancePlaced"])
        for entity_id in (instance_id, placed.event.placement.ranks[0].runner_id):
            assert why(watched, entity_id).links
        assert watched.windows == 0


@pytest.mark.parametrize(("epoch", "weighed"), [(2, 2), (3, 2)])
def test_an_epoch_is_told_of_with_the_windows_that_were_weighed(
    told: tuple[Path, str], epoch: int, weighed: int
) -> None:
    path, instance_id = told
    with LogReader.open(path) as reader:
        watched = Watched(reader)
        story = why_epoch(watched, instance_id, epoch)
        assert sum("closed load window" in link.sentence for link in story.links) == weighed
        assert watched.windows <= 2 * weighed


def test_a_heat_map_keeps_no_more_windows_than_epochs(told: tuple[Path, str]) -> None:
    path, instance_id = told
    with LogReader.open(path) as reader:
        tracemalloc.start()
        try:
            heat = heat_map(reader, instance_id)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (heat.before is not None, heat.after is not None, heat.epoch) == (True, True, 3)
    assert most < LATER / 2 * 20 * 256 * 36
