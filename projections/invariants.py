"""What must hold of `ClusterState` after every event. Checked by tests and by `cuebook replay verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from events.status import Failed, Shutdown
from projections.state import ClusterState


def violations(state: ClusterState) -> list[str]:
    """Every broken invariant as a sentence; empty where all hold."""
    return [*_instances(state), *_runners(state), *_tasks(state), *_models(state)]


def _instances(state: ClusterState) -> Iterator[str]:
    for instance in state.instances.values():
        name = instance.instance_id
        if (instance.placement is not None) != (instance.status in ("placed", "ready")):
            yield f"{name} is {instance.status} and its placement is {instance.placement}"
        for rank in instance.placement.ranks if instance.placement else ():
            runner = state.runners.get(rank.runner_id)
            if runner is None or not runner.current or runner.instance_id != name:
                yield f"rank {rank.rank} of {name} has no current runner {rank.runner_id}"
        if instance.model_id not in state.models:
            yield f"{name} is of an unknown model {instance.model_id}"


def _runners(state: ClusterState) -> Iterator[str]:
    for runner in state.runners.values():
        instance = state.instances.get(runner.instance_id)
        placement = instance.placement if instance else None
        placed = placement is not None and runner.runner_id in [r.runner_id for r in placement.ranks]
        if runner.current and not placed:
            yield f"{runner.runner_id} is current, but no placement has it"
        if not runner.current and isinstance(runner.status, Failed | Shutdown):
            yield f"{runner.runner_id} has ended and is still in the state"
        if runner.node_id not in state.nodes:
            yield f"{runner.runner_id} is on an unknown node {runner.node_id}"


def _tasks(state: ClusterState) -> Iterator[str]:
    for task in state.tasks.values():
        if task.instance_id not in state.instances:
            yield f"{task.task_id} has no instance"
        runner = state.runners.get(task.runner_id)
        if runner is None or not runner.current:
            yield f"{task.task_id} has no current runner {task.runner_id}"
    if state.open_tasks != Counter(task.instance_id for task in state.tasks.values()):
        yield f"open tasks are counted wrongly: {state.open_tasks}"


def _models(state: ClusterState) -> Iterator[str]:
    for node_id, model_id in state.downloads:
        if model_id not in state.models:
            yield f"a download of {model_id} on {node_id}, which is unknown"
