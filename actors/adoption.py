"""Runners that the log has lost, as after a partition: which are offered, which are kept, which end.

Pure functions for `actors.plan`. A lone runner is offered at once. For a group the worker of rank 0 offers:
while its process lives the others do, since a group that loses a rank ends. The other ranks are kept
meanwhile: they end with rank 0's process where that is refused, and after `KEPT_S` in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from events.status import Idle
from projections.state import ClusterState

if TYPE_CHECKING:
    from actors.plan import LocalRunner, LocalView

GATHER_S = 5.0
"""Seconds in which the nodes of all ranks must be back in the log. What is offered later is refused."""
KEPT_S = 30.0
"""Seconds that a rank is kept whose rank 0 says nothing, its node having lost its power, say."""

Fate = Literal["offer", "keep", "end"]


def remember(state: ClusterState, view: LocalView) -> None:
    """Keep in mind what the log knows of the runners here, and since when it has not known one."""
    for runner_id, local in view.runners.items():
        known = state.runners.get(runner_id)
        if known is None:
            local.lost_at = local.lost_at or view.now
        elif known.current:
            local.lost_at, local.offered, local.refused = 0.0, False, False
            local.ready = state.instances[local.instance_id].status == "ready"
            local.incarnations = [state.nodes[rank.node_id].incarnation for rank in local.placement.ranks]
            runners = [state.runners[rank.runner_id] for rank in local.placement.ranks]
            local.processes = [
                Idle(pid=each.pid, started_at=each.process_started_at, port=each.port) for each in runners
            ]


def fate(state: ClusterState, view: LocalView, runner_id: str) -> Fate:
    """What is to become of a runner that the log does not know."""
    local = view.runners[runner_id]
    if not local.ready or local.refused:
        return "end"
    if not _leads(runner_id, local):
        return "keep" if _is_wanted(state, local) and view.now < local.lost_at + KEPT_S else "end"
    if local.offered:
        return "keep"
    nodes = [state.nodes.get(rank.node_id) for rank in local.placement.ranks]
    gathered = all(node is not None and node.up for node in nodes)
    return "offer" if gathered or view.now >= local.lost_at + GATHER_S else "keep"


def deadlines(view: LocalView) -> Iterator[float]:
    """When the fate of a runner changes though nothing happens, in Unix seconds."""
    for runner_id, local in view.runners.items():
        if local.lost_at and not local.stopping:
            yield local.lost_at + (GATHER_S if _leads(runner_id, local) else KEPT_S)


def _leads(runner_id: str, local: LocalRunner) -> bool:
    return runner_id == local.placement.ranks[0].runner_id


def _is_wanted(state: ClusterState, local: LocalRunner) -> bool:
    instance = state.instances.get(local.instance_id)
    return instance is not None and instance.status != "ready"
