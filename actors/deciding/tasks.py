"""Tasks: created on a ready instance, ended exactly once."""

from __future__ import annotations

from actors.refusal import Rejected
from events import catalogue as ev
from events import commands as cmd
from events.base import Event
from events.commands import Facts
from events.ids import drawn, drawn_int
from events.values import NO_TOKENS, Cause, Sampling
from projections.state import ClusterState, Instance, InstanceStatus

MAX_OPEN_TASKS = 1024
"""Open tasks of one instance; a request beyond them is refused at once rather than left to wait."""

MAX_SEED = 2**63 - 1
"""The largest seed: no column of projections.db holds a larger integer."""

_NEAREST: list[InstanceStatus] = ["placed", "waiting", "failed"]
"""How near an instance is to being ready: which of several a refusal speaks of."""


def create_tasks(state: ClusterState, command: cmd.CreateTasks, facts: Facts) -> list[Event]:
    """Accept a request for the least busy ready instance; without a seed of the client, draw one."""
    instance = _ready_instance(state, command)
    assert instance.placement is not None  # ready instances have one
    _check_room(state, command, instance)
    base = command.sampling.seed
    return [
        ev.TaskCreated(
            task_id=drawn("task", facts.seed, index),
            request_id=command.request_id,
            index=index,
            instance_id=instance.instance_id,
            runner_id=instance.placement.ranks[0].runner_id,
            model_id=instance.model_id,
            kind=command.kind,
            sampling=Sampling(
                max_tokens=command.sampling.max_tokens,
                temperature=command.sampling.temperature,
                top_p=command.sampling.top_p,
                seed=(base + index) & MAX_SEED if base is not None else drawn_int("seed", facts.seed, index),
                stop=command.sampling.stop,
                logprobs=command.sampling.logprobs,
            ),
            api_node=command.api_node,
        )
        for index in range(command.count)
    ]


def cancel_tasks(state: ClusterState, command: cmd.CancelTasks, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Ask for the end of those tasks that are still open."""
    named = (state.tasks.get(task_id) for task_id in dict.fromkeys(command.task_ids))
    return [
        ev.TaskCancelRequested(task_id=task.task_id, reason=command.reason)
        for task in named
        if task is not None and not task.cancelled
    ]


def task_ended(state: ClusterState, command: cmd.ReportTask, facts: Facts) -> list[Event]:  # noqa: ARG001
    """The runner's word on a task's end; a task that has ended already stays as it is."""
    task = state.tasks.get(command.task_id)
    if task is None:
        return []
    outcome = command.outcome
    if isinstance(outcome, cmd.Finished):
        return [
            ev.TaskFinished(
                task_id=task.task_id,
                finish_reason=outcome.finish_reason,
                usage=outcome.usage,
                timings=outcome.timings,
            )
        ]
    if isinstance(outcome, cmd.Broken):
        return [ev.TaskFailed(task_id=task.task_id, cause=outcome.cause, usage=outcome.usage)]
    reason = task.cancelled or "the runner dropped it"
    return [ev.TaskCancelled(task_id=task.task_id, reason=reason, usage=outcome.usage)]


def fail_open_tasks(state: ClusterState, instance_id: str, cause: Cause) -> list[Event]:
    """The ends of all open tasks of an instance; those being cancelled end as cancelled."""
    return [
        ev.TaskCancelled(task_id=task.task_id, reason=task.cancelled, usage=NO_TOKENS)
        if task.cancelled
        else ev.TaskFailed(task_id=task.task_id, cause=cause, usage=NO_TOKENS)
        for task in state.tasks.values()
        if task.instance_id == instance_id
    ]


def unknown_instance(instance_id: str) -> Cause:
    """The refusal of an instance that is not, or no longer, wanted."""
    return Cause(
        code="instance_not_found",
        message=f"There is no instance {instance_id!r}; GET /instance lists those that are.",
    )


def _ready_instance(state: ClusterState, command: cmd.CreateTasks) -> Instance:
    if command.instance_id:
        wanted = [i for i in state.instances.values() if i.instance_id == command.instance_id]
    else:
        wanted = [i for i in state.instances.values() if i.model_id == command.model_id]
    if command.instance_id and not wanted:
        raise Rejected(unknown_instance(command.instance_id))
    if not wanted:
        raise Rejected(
            Cause(
                code="model_not_running",
                message=f"No instance of {command.model_id!r} is running. Place one first: "
                f"`cuebook place {command.model_id}` or POST /instance.",
            )
        )
    ready = [instance for instance in wanted if instance.status == "ready"]
    if not ready:
        raise Rejected(_not_ready(min(wanted, key=lambda i: _NEAREST.index(i.status))))
    return min(ready, key=lambda i: (state.open_tasks.get(i.instance_id, 0), i.instance_id))


def _not_ready(instance: Instance) -> Cause:
    why = f" The last trouble was: {instance.cause.message}" if instance.cause else ""
    if instance.status == "failed":
        hint = f"It is not tried again by itself; `POST /instance/{instance.instance_id}/retry` does."
        detail: dict[str, str | int | float] = {"status": instance.status}
    else:
        hint = "Wait for it with GET /instance/await, or try again in a moment."
        detail = {"status": instance.status, "retry_after": 2}
    message = f"{instance.instance_id} of {instance.model_id} is {instance.status}, not ready. {hint}{why}"
    return Cause(code="instance_not_ready", message=message, detail=detail)


def _check_room(state: ClusterState, command: cmd.CreateTasks, instance: Instance) -> None:
    assert instance.placement is not None
    context = instance.placement.context
    if command.sampling.max_tokens >= context:
        raise Rejected(
            Cause(
                code="context_length_exceeded",
                message=f"This model's maximum context length is {context} tokens here, and "
                f"{command.sampling.max_tokens} were asked for the answer alone. Ask for fewer.",
            )
        )
    waiting = state.open_tasks.get(instance.instance_id, 0)
    if waiting + command.count > MAX_OPEN_TASKS:
        raise Rejected(
            Cause(
                code="overloaded",
                message=f"{instance.instance_id} has {waiting} open tasks, and takes at most "
                f"{MAX_OPEN_TASKS}. Try again when some have finished.",
                detail={"retry_after": 5},
            )
        )
