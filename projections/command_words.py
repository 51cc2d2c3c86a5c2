"""Every command and report as words for people, such as follow 'because'. A test fails where one has none."""

from __future__ import annotations

from functools import singledispatch

from events import commands as cmd
from events import expert_commands as expert_cmd
from events.base import Command
from projections.phrases import count, reason, size
from projections.words import runner_status, wishes


@singledispatch
def asked(command: Command) -> str:
    """What was asked or reported, without a full stop. Raises `TypeError` for a type without words."""
    raise TypeError(f"{type(command).__name__} has no words; add them to projections.command_words")


def subject(command: Command) -> str:
    """The id of what a command is mainly about."""
    for field in _SUBJECTS:
        value = getattr(command, field, None)
        if value:
            return value
    if isinstance(command, cmd.CancelTasks):
        return ", ".join(command.task_ids)
    if isinstance(command, cmd.ReportModel):
        return command.card.model_id
    return getattr(command, "origin", "")


_SUBJECTS = ("task_id", "request_id", "runner_id", "instance_id", "actor", "model_id", "node_id")


@asked.register
def _(command: cmd.StartEpoch) -> str:
    return f"{command.node_id} takes office as master"


@asked.register
def _(command: cmd.PlaceInstance) -> str:
    return f"someone asked to run {command.model_id}{wishes(command.settings)}"


@asked.register
def _(command: cmd.RetryInstance) -> str:
    return f"{command.by} asked to try {command.instance_id} again now"


@asked.register
def _(command: cmd.DeleteInstance) -> str:
    return f"someone asked to delete {command.instance_id}"


@asked.register
def _(command: cmd.ReconcileInstance) -> str:
    return f"{command.instance_id} had no placement and its time to be tried had come"


@asked.register
def _(command: cmd.CreateTasks) -> str:
    tasks = "an answer" if command.count == 1 else f"{command.count} answers"
    where = f", {command.instance_id}" if command.instance_id else ""
    return f"{command.request_id} asked for {tasks} of {command.model_id}{where}"


@asked.register
def _(command: cmd.CancelTasks) -> str:
    return f"nobody waits any more for {', '.join(command.task_ids)}: {command.reason}"


@asked.register
def _(command: cmd.ReportNodeStarted) -> str:
    return f"{command.origin} reported that it had started"


@asked.register
def _(command: cmd.ReportNodeStopping) -> str:
    return f"{command.origin} reported that it was stopping: {command.reason}"


@asked.register
def _(command: cmd.ReportResources) -> str:
    memory = size(command.memory_available)
    return f"{command.origin} measured {memory} memory available, {size(command.disk_free)} disk free"


@asked.register
def _(command: cmd.ReportLinks) -> str:
    return f"{command.origin} measured its ways to {count(len(command.links), 'other node')}"


@asked.register
def _(command: cmd.ReportNodeLost) -> str:
    return f"{command.origin} reported that {command.node_id} was lost: {reason(command.cause)}"


@asked.register
def _(command: cmd.ReportRefusedPeer) -> str:
    return f"{command.origin} reported that it had turned away {command.host}"


@asked.register
def _(command: cmd.ReportBranch) -> str:
    return f"{command.origin} reported that its side of the log gave way after decision {command.fork}"


@asked.register
def _(command: cmd.ReportAdoptable) -> str:
    runners = ", ".join(rank.runner_id for rank in command.placement.ranks)
    return f"{command.origin} reported that {runners} of {command.instance_id} lives on"


@asked.register
def _(command: cmd.ReportActor) -> str:
    if command.dead_letters:
        letters = count(command.dead_letters, "message")
        return f"{command.origin} counted {letters} to {command.actor} after its end"
    return f"{command.origin} reported a crash of its actor {command.actor}"


@asked.register
def _(command: cmd.ReportModel) -> str:
    where = f"in {command.path}" if command.path else "without its files"
    return f"{command.origin} reported the model {command.card.model_id}, {where}"


@asked.register
def _(command: cmd.ReportModelGone) -> str:
    return f"{command.origin} no longer found the files of {command.model_id}"


@asked.register
def _(command: cmd.ReportDownload) -> str:
    if command.cause:
        return f"{command.origin} could not fetch {command.model_id}: {reason(command.cause)}"
    done, total = size(command.done_bytes), size(command.total_bytes)
    return f"{command.origin} had fetched {done} of {total} of {command.model_id}"


@asked.register
def _(command: cmd.ReportRunner) -> str:
    return f"{command.origin} reported that {runner_status(command.runner_id, command.status)}"


@asked.register
def _(command: cmd.ReportTask) -> str:
    match command.outcome:
        case cmd.Finished():
            return f"{command.origin} reported that {command.task_id} had finished"
        case cmd.Broken(cause=cause):
            return f"{command.origin} reported that {command.task_id} broke: {reason(cause)}"
        case cmd.Stopped():
            return f"{command.origin} reported that {command.task_id} had stopped as told"


@asked.register
def _(command: expert_cmd.ReportExpertLoad) -> str:
    return f"{command.runner_id} of {command.instance_id} reported load window {command.window}"


@asked.register
def _(command: expert_cmd.Rebalance) -> str:
    return f"load window {command.window} of {command.instance_id} had closed and was to be weighed"


@asked.register
def _(command: expert_cmd.ReportLayerStaged) -> str:
    layer = f"layer {command.layer} of {command.migration_id}"
    if command.cause is not None:
        return f"{command.runner_id} reported that {layer} could not be staged: {reason(command.cause)}"
    return f"{command.runner_id} reported that all ranks had staged {layer}"


@asked.register
def _(command: expert_cmd.ReportLayerApplied) -> str:
    layer = f"layer {command.layer} of {command.migration_id}"
    return f"{command.runner_id} reported that all ranks had applied {layer}"


@asked.register
def _(command: expert_cmd.ExpireMigration) -> str:
    return f"layer {command.layer} of {command.migration_id} had missed its deadline: {reason(command.cause)}"
