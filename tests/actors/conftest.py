from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from random import Random

import pykka
import pytest

from actors.clock import ManualClock
from actors.system import ActorIncident, ActorSystem


@pytest.fixture
def incidents() -> list[ActorIncident]:
    """What the observer of `system` was told, in order."""
    return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=1_000_000.0)


@pytest.fixture
def system(clock: ManualClock, incidents: list[ActorIncident]) -> Iterator[ActorSystem]:
    """Real threads, a clock that stands still, chance from a fixed seed."""
    yield ActorSystem(clock=clock, random=Random(7), observer=incidents.append)
    for ref in reversed(pykka.ActorRegistry.get_all()):
        ref.stop(block=False)


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it did not come true within 60 s"
            time.sleep(0.001)

    return wait


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns every microsecond, so that races that are rare elsewhere show here."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
