"""What must hold of `ClusterState` after every event. Checked by tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from events.status import Failed, Shutdown
from projections.state import ClusterState, Experts, Instance


def violations(state: ClusterState) -> list[str]:
    """Every broken invariant as a sentence; empty where all hold."""
    return [*_instances(state), *_runners(state), *_tasks(state), *_models(state), *_experts(state)]


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


def _experts(state: ClusterState) -> Iterator[str]:
    for instance in state.instances.values():
        if instance.placement is not None and instance.placement.eplb is not None:
            yield from _placed_experts(instance, state.experts.get(instance.instance_id))
    for experts in state.experts.values():
        name, instance = experts.instance_id, state.instances.get(experts.instance_id)
        if instance is None:
            yield f"experts of {name}, which is not there"
        yield from _maps(experts)
        if experts.migration is not None:
            yield from _migration(experts, instance)
        if experts.load is not None and experts.load.window != experts.window:
            yield f"the load of {name} is of window {experts.load.window}, not of {experts.window}"


def _placed_experts(instance: Instance, experts: Experts | None) -> Iterator[str]:
    placement = instance.placement
    assert placement is not None
    assert placement.eplb is not None
    if experts is None:
        yield f"{instance.instance_id} is placed with EPLB and its experts are nowhere"
        return
    slots = experts.experts + placement.eplb.redundant_experts
    if experts.ranks != len(placement.ranks) or any(len(layer) != slots for layer in experts.maps):
        yield f"the experts of {instance.instance_id} are placed for other ranks or slots than it has"


def _maps(experts: Experts) -> Iterator[str]:
    for number, layer in enumerate(experts.maps):
        if set(layer) != set(range(experts.experts)):
            yield f"layer {number} of {experts.instance_id} does not place every expert: {layer}"
        if len(layer) % experts.ranks:
            yield f"{len(layer)} slots of {experts.instance_id} don't divide by {experts.ranks} ranks"


def _migration(experts: Experts, instance: Instance | None) -> Iterator[str]:
    name, migration = experts.instance_id, experts.migration
    assert migration is not None
    if instance is None or instance.status != "ready":
        yield f"experts of {name} move, and it is not ready"
    begun = migration.position > 0 or migration.stage == "committed"
    if migration.epoch != experts.epoch + (not begun):
        yield f"a migration of {name} is of epoch {migration.epoch}, at epoch {experts.epoch}"
    at_hand = migration.layers[migration.position]
    if migration.stage == "committed" and experts.maps[at_hand.layer] != at_hand.map:
        yield f"layer {at_hand.layer} of {name} is committed, and its map is another one"
