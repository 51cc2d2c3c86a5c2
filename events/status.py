"""A runner's status: the first seed's state machine as a tagged union."""

from __future__ import annotations

import msgspec

from events.values import Cause, Diagnostics


class _Status(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="status", tag=True):
    """Base of the statuses; the class name is the tag."""


class Spawning(_Status, frozen=True):
    """Placed; its process is not there yet, or has not said that it is."""


class Idle(_Status, frozen=True):
    """The process is up and holds no model. ``options`` are choices of its start, such as the BLAS."""

    pid: int
    started_at: float
    """Start time of the process as the operating system gives it: with ``pid`` it is its identity."""
    options: dict[str, str] = {}
    port: int = 0
    """A port of its node that was free at the start: where the other ranks of a group find it."""


class Connecting(_Status, frozen=True):
    """Joining the group of ranks."""


class Connected(_Status, frozen=True):
    """All ranks of the group have met."""


class Loading(_Status, frozen=True):
    """Weights are read; ``layers`` of ``total`` are in memory."""

    layers: int
    total: int


class Loaded(_Status, frozen=True):
    """All weights are in memory. ``notes`` say what the engine had to correct, such as a rope_theta."""

    notes: list[str] = []


class WarmingUp(_Status, frozen=True):
    """A first forward pass runs."""


class Ready(_Status, frozen=True):
    """Takes tasks. That it is computing one (Running) is derived from the open tasks, not logged."""


class ShuttingDown(_Status, frozen=True):
    """Told to stop."""


class Shutdown(_Status, frozen=True):
    """Ended as told."""


class Failed(_Status, frozen=True):
    """Ended otherwise. ``phase`` is the status in which it happened."""

    phase: str
    cause: Cause
    diagnostics: Diagnostics = Diagnostics()


RunnerStatus = (
    Spawning
    | Idle
    | Connecting
    | Connected
    | Loading
    | Loaded
    | WarmingUp
    | Ready
    | ShuttingDown
    | Shutdown
    | Failed
)


def name(status: RunnerStatus) -> str:
    """The status as people read it, e.g. ``Loading``."""
    return type(status).__name__
