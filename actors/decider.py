"""The decider: what a command or report makes happen, as a pure function of state, command and facts.

It reads no clock, draws no id of its own, iterates no set; so deciding again with the recorded facts gives
the same bytes, which is what `cuebook replay verify` checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.deciding import adopting, downloads, experts, instances, nodes, runners, tasks
from actors.placement import Preference, most_room
from events import commands as cmd
from events import expert_commands as expert_cmd
from events.base import Command, Event
from events.commands import Facts
from events.experts import EplbPolicy
from projections.state import ClusterState

NAME = "cluster"
VERSION = 3
"""Raise it with every change that decides an old case differently: `verify` then says so."""

Decide = Callable[[ClusterState, Command, Facts], list[Event]]


def make_decider(prefer: Preference = most_room, balancer: EplbPolicy | None = None) -> Decide:
    """The decider with a placement policy. It raises `actors.refusal.Rejected` to refuse.

    ``balancer`` is the policy by which experts are rebalanced, in place of what each instance asks for.
    """

    def decide(state: ClusterState, command: Command, facts: Facts) -> list[Event]:
        if isinstance(command, cmd.PlaceInstance):
            return instances.place_instance(state, command, facts, prefer)
        if isinstance(command, cmd.ReconcileInstance):
            return instances.reconcile_instance(state, command, facts, prefer)
        if isinstance(command, expert_cmd.Rebalance):
            return experts.rebalance(state, command, facts, balancer)
        return _RULES[type(command)](state, command, facts)

    return decide


_RULES: dict[type[Command], Callable[[ClusterState, Any, Facts], list[Event]]] = {
    cmd.StartEpoch: nodes.start_epoch,
    cmd.RetryInstance: instances.retry_instance,
    cmd.DeleteInstance: instances.delete_instance,
    cmd.CreateTasks: tasks.create_tasks,
    cmd.CancelTasks: tasks.cancel_tasks,
    cmd.ReportNodeStarted: nodes.node_started,
    cmd.ReportNodeStopping: nodes.node_stopping,
    cmd.ReportResources: nodes.resources,
    cmd.ReportLinks: nodes.links,
    cmd.ReportNodeLost: nodes.node_lost,
    cmd.ReportRefusedPeer: nodes.refused_peer,
    cmd.ReportBranch: nodes.branch,
    cmd.ReportActor: nodes.actor,
    cmd.ReportModel: downloads.model,
    cmd.ReportModelGone: downloads.model_gone,
    cmd.ReportDownload: downloads.download,
    cmd.ReportRunner: runners.runner,
    cmd.ReportAdoptable: adopting.adopt,
    cmd.ReportTask: tasks.task_ended,
    expert_cmd.ReportExpertLoad: experts.load,
    expert_cmd.ReportLayerStaged: experts.staged,
    expert_cmd.ReportLayerApplied: experts.applied,
    expert_cmd.ExpireMigration: experts.expire,
}

decide = make_decider()
"""The decider in force."""
