"""Runners: their life cycle as reported, and what their end means for tasks and instances."""

from __future__ import annotations

from typing import get_args

from actors.deciding.ends import end_service
from actors.deciding.instances import set_back
from events import catalogue as ev
from events import commands as cmd
from events.base import Event
from events.commands import Facts
from events.status import Failed, Loading, Ready, RunnerStatus, Shutdown
from events.values import Cause, Diagnostics, Policy
from projections.state import ClusterState, Runner

LOADING_STEPS = 4
"""Loading is logged when it starts and ends and about this many times in between."""

_LIFE: list[type[RunnerStatus]] = [*get_args(RunnerStatus)]
"""The statuses in the order in which a runner passes through them."""


def runner(state: ClusterState, command: cmd.ReportRunner, facts: Facts) -> list[Event]:
    """Record a status that is news; the last rank's Ready makes the instance ready."""
    known = state.runners.get(command.runner_id)
    if known is None or not _is_news(known.status, command.status):
        return []
    if isinstance(command.status, Failed | Shutdown):
        return ended(state, known, command.status, facts.now, command.policy)
    events: list[Event] = [_changed(known, command.status)]
    if isinstance(command.status, Ready) and known.current:
        events.extend(_instance_ready(state, known, facts.now))
    return events


def ended(
    state: ClusterState, runner: Runner, status: Failed | Shutdown, now: float, policy: Policy
) -> list[Event]:
    """A runner's end: what was open with it ends too, and a placement that counted on it is void."""
    if not runner.current:
        return [_changed(runner, status)]
    failed = status if isinstance(status, Failed) else _ended_unasked(runner)
    instance = state.instances[runner.instance_id]
    return [
        _changed(runner, status),
        *end_service(state, instance.instance_id, failed.cause),
        set_back(instance, failed.cause, now, policy),
    ]


def _changed(runner: Runner, status: RunnerStatus) -> Event:
    return ev.RunnerStatusChanged(runner_id=runner.runner_id, instance_id=runner.instance_id, status=status)


def _ended_unasked(runner: Runner) -> Failed:
    cause = Cause(code="runner_ended", message=f"{runner.runner_id} ended without having been told to.")
    return Failed(phase=type(runner.status).__name__, cause=cause, diagnostics=Diagnostics(exit_code=0))


def _is_news(known: RunnerStatus, reported: RunnerStatus) -> bool:
    """A runner's life goes one way: a status that it has left comes from a report that was sent twice."""
    if isinstance(known, Failed | Shutdown) or _LIFE.index(type(reported)) < _LIFE.index(type(known)):
        return False
    if isinstance(known, Loading) and isinstance(reported, Loading):
        step = max(1, reported.total // LOADING_STEPS)
        return reported.layers - known.layers >= step or known.layers < reported.layers == reported.total
    return known != reported


def _instance_ready(state: ClusterState, runner: Runner, now: float) -> list[Event]:
    instance = state.instances[runner.instance_id]
    others = [r for r in state.instance_runners(instance) if r.runner_id != runner.runner_id]
    if not all(isinstance(other.status, Ready) for other in others):
        return []
    return [ev.InstanceReady(instance_id=instance.instance_id, load_s=now - instance.placed_at)]
