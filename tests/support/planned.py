"""A node's worker on paper: what its plan asks for, and what comes of it."""

from __future__ import annotations

from support.cluster import KILLED, NODE, Cluster

from actors import plan as p
from actors.adoption import remember


class Node:
    """A node's worker on paper: its view, and the effect that each step has on it."""

    def __init__(self, cluster: Cluster, node_id: str = NODE) -> None:
        self.cluster = cluster
        self.view = p.LocalView(node_id=node_id)

    def steps(self) -> list[p.Step]:
        self.view.now = self.cluster.now
        remember(self.cluster.state, self.view)
        return p.plan(self.cluster.state, self.view)

    def names(self) -> list[str]:
        return [type(step).__name__ for step in self.steps()]

    def carry_out(self) -> list[str]:
        """Do what is due as the worker does; afterwards nothing is due before something happens."""
        steps = self.steps()
        for step in steps:
            self._do(step)
        assert self.names() == [], "a step is due again though it was carried out"
        return [type(step).__name__ for step in steps]

    def _do(self, step: p.Step) -> None:
        view = self.view
        match step:
            case p.CancelTask() | p.AbandonTask():
                view.cancelling.add(step.task.task_id)
            case p.OfferRunner():
                view.runners[step.runner_id].offered = True
            case p.ConnectRunner():
                view.runners[step.rank.runner_id].connecting = True
            case p.ShutDownRunner():
                view.runners[step.runner_id].stopping = True
            case p.ReportLost():
                self.cluster.runner(KILLED, runner_id=step.runner.runner_id)
            case p.ReportNeverSpawned():
                view.spent.add(step.runner_id)
            case p.CreateRunner():
                view.spent.add(step.rank.runner_id)
                view.runners[step.rank.runner_id] = p.LocalRunner(step.instance_id, step.placement)
            case p.FetchModel():
                view.fetching.add(step.model.model_id)
            case p.LoadModel():
                view.runners[step.runner_id].loading = True
                view.runners[step.runner_id].told(step)
            case p.StageExperts() | p.ApplyExperts() | p.DropStaging():
                view.runners[step.runner_id].told(step)
            case p.WarmUpRunner():
                view.runners[step.runner_id].warming = True
            case p.Dispatch():
                view.dispatched[step.task.task_id] = step.task.runner_id
            case _:
                raise AssertionError(step)
