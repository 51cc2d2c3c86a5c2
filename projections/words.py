"""Every event as a sentence for people. A test fails where a type of event has none."""

from __future__ import annotations

from functools import singledispatch

from events import catalogue as ev
from events import status as st
from events.base import Event
from events.expert_events import ExpertEvent
from events.values import Candidate, Diagnostics, ModelSource, Placement, PlacementSettings
from projections import expert_words
from projections.phrases import count, milliseconds, moment, parameters, reason, size


def wishes(settings: PlacementSettings) -> str:
    """What a user wants of a placement, e.g. ``, with context 4096 and engine mlx``; empty where nothing."""
    wanted = {
        "strategy": "" if settings.shard_strategy == "auto" else settings.shard_strategy,
        "context": settings.context,
        "engine": settings.engine,
        "dtype": settings.dtype,
        "node": settings.node_id,
        "device": settings.device_id,
        "ranks": settings.ranks,
        "dispatch": "" if settings.expert_dispatch == "shared" else settings.expert_dispatch,
        "format": "" if settings.expert_format == "plain" else settings.expert_format,
        "EPLB policy": settings.eplb.policy if settings.eplb else "",
    }
    words = [f"{name} {value}" for name, value in wanted.items() if value]
    return f", with {', '.join(words)}" if words else ""


def where(placement: Placement) -> str:
    """The ranks of a placement, e.g. ``cpu:0 of node-ef as runner-ab (layers 0 to 29, 1.10 GiB)``."""
    return "; ".join(
        f"{rank.device_id} of {rank.node_id} as {rank.runner_id} "
        f"(layers {rank.start_layer} to {rank.end_layer - 1}, {size(rank.reserved_bytes)})"
        for rank in placement.ranks
    )


def reasons(candidate: Candidate) -> str:
    """Why a candidate got its verdict, e.g. ``needs 1.10 GiB, 14.00 GiB are free``."""
    numbers = f"needs {size(candidate.needed_bytes)}, {size(candidate.free_bytes)} are free"
    return "; ".join(candidate.reasons) or numbers


def verdict(candidate: Candidate) -> str:
    """A candidate in words, e.g. ``mlx on cpu:0 of node-ef was refused: node node-ab was asked for``."""
    word = {"chosen": "was chosen", "fits": "fits", "refused": "was refused"}[candidate.verdict]
    where = f"{candidate.engine} on {candidate.device_id} of {candidate.node_id}"
    return f"{where} {word}: {reasons(candidate)}"


def origin(source: ModelSource) -> str:
    """Where files come from, e.g. ``the hub, org/name at main``."""
    place = {"directory": "the directory", "hub": "the hub,", "package": "the package"}[source.kind]
    at = f" at {source.revision}" if source.revision else ""
    return f"{place} {source.location}{at}"


def status_detail(status: st.RunnerStatus) -> str:
    """What there is to say about a status besides its name; empty for most."""
    match status:
        case st.Idle():
            choices = "".join(f", {name} {value}" for name, value in status.options.items())
            return f"process {status.pid}{choices}"
        case st.Loading():
            return f"{status.layers} of {status.total} layers"
        case st.Loaded():
            return "; ".join(status.notes)
        case st.Failed():
            return f"while {status.phase}: {reason(status.cause)}"
        case _:
            return ""


def end_of_process(diagnostics: Diagnostics) -> str:
    """How a process ended, e.g. ``was killed by signal SIGKILL``."""
    if diagnostics.signal:
        return f"was killed by signal {diagnostics.signal}"
    if diagnostics.exit_code is not None:
        return f"ended with exit code {diagnostics.exit_code}"
    return "failed"


def runner_status(runner: str, status: st.RunnerStatus) -> str:
    """A sentence, without its full stop, on ``runner`` having reached a status."""
    match status:
        case st.Spawning():
            return f"{runner} is being started"
        case st.Idle():
            return f"{runner} is up ({status_detail(status)})"
        case st.Failed():
            end = f"{runner} {end_of_process(status.diagnostics)} while {status.phase}"
            known = status.diagnostics.signal and status.diagnostics.signal in status.cause.message
            return end if known else f"{end}: {reason(status.cause)}"
        case st.Loading() if status.layers == 0:
            return f"{runner} began to load {status.total} layers"
        case _:
            verb = _VERBS.get(type(status), f"is {type(status).__name__}")
            detail = status_detail(status)
            return f"{runner} {verb}" + (f": {detail}" if detail else "")


_VERBS: dict[type, str] = {
    st.Connecting: "is joining its group",
    st.Connected: "has joined its group",
    st.Loading: "is loading",
    st.Loaded: "has loaded its weights",
    st.WarmingUp: "is warming up",
    st.Ready: "is ready",
    st.ShuttingDown: "was told to stop",
    st.Shutdown: "has stopped as told",
}


@singledispatch
def sentence(event: Event) -> str:
    """What happened, in one sentence without a full stop. Raises `TypeError` for a type without words."""
    raise TypeError(f"{type(event).__name__} has no words; add them to projections.words")


@sentence.register
def _(event: ev.EpochStarted) -> str:
    return f"{event.node_id} took office as master of epoch {event.epoch}"


@sentence.register
def _(event: ev.NodeStarted) -> str:
    engines = ", ".join(f"{e.engine} {e.version}" for e in event.engines if e.ok) or "no usable engine"
    devices = ", ".join(device.device_id for device in event.devices)
    return (
        f"Node {event.name} ({event.node_id}) started: {devices} with {engines}, "
        f"{size(event.memory_available)} of {size(event.memory_total)} memory available"
    )


@sentence.register
def _(event: ev.NodeStopped) -> str:
    if event.node_id in event.cause.message:
        return reason(event.cause)
    end = "stopped" if event.clean else "was found to have died"
    return f"{event.node_id} {end}: {reason(event.cause)}"


@sentence.register
def _(event: ev.NodeResourcesChanged) -> str:
    memory, disk = size(event.memory_available), size(event.disk_free)
    return f"{event.node_id} now has {memory} memory available and {disk} disk free"


@sentence.register
def _(event: ev.ActorFailed) -> str:
    times = f", restart {event.restarts}" if event.restarts else ""
    return f"Actor {event.actor} of {event.node_id} crashed and was {event.action}{times}: {event.error}"


@sentence.register
def _(event: ev.LinksChanged) -> str:
    if not event.links:
        return f"{event.node_id} reaches no other node"
    ways = ", ".join(f"{link.node_id} in {milliseconds(link.latency_s)}" for link in event.links)
    return f"{event.node_id} reaches {ways}"


@sentence.register
def _(event: ev.PeerRefused) -> str:
    return f"{event.node_id} turned away {event.host}: {event.reason}"


@sentence.register
def _(event: ev.BranchRejected) -> str:
    lost = count(len(event.command_ids), "decision")
    return (
        f"{lost} of {event.node_id} after decision {event.fork} gave way to epoch {event.winner}, because "
        f"{event.reason}; they are kept in its table rejected_decisions"
    )


@sentence.register
def _(event: ev.DeadLettersCounted) -> str:
    messages = count(event.count, "message")
    return f"{messages} reached {event.actor} of {event.node_id} after its end, such as {event.sample}"


@sentence.register
def _(event: ev.ModelDescribed) -> str:
    card = event.card
    return (
        f"Model {event.model_id} became known: {card.model_type}, {parameters(card.n_params)} parameters, "
        f"{card.n_layers} layers, {size(card.weight_bytes)} in {card.dtype}, from {origin(event.source)}"
    )


@sentence.register
def _(event: ev.ModelStored) -> str:
    return f"{event.model_id} is on {event.node_id}: {size(event.size_bytes)} in {event.path}"


@sentence.register
def _(event: ev.ModelGone) -> str:
    return f"The files of {event.model_id} are no longer on {event.node_id}"


@sentence.register
def _(event: ev.DownloadStarted) -> str:
    again = f", attempt {event.attempt}" if event.attempt > 1 else ""
    return f"{event.node_id} began to fetch {event.model_id} from {origin(event.source)}{again}"


@sentence.register
def _(event: ev.DownloadProgressed) -> str:
    done, total = size(event.done_bytes), size(event.total_bytes)
    return f"{event.node_id} has fetched {done} of {total} of {event.model_id}"


@sentence.register
def _(event: ev.DownloadFailed) -> str:
    again = f"it is tried again at {moment(event.retry_at)}" if event.retry_at else "it is not tried again"
    return (
        f"{event.node_id} failed to fetch {event.model_id}, attempt {event.attempt}: "
        f"{reason(event.cause)}; {again}"
    )


@sentence.register
def _(event: ev.InstanceRequested) -> str:
    return f"An instance of {event.model_id} is wanted, {event.instance_id}{wishes(event.settings)}"


@sentence.register
def _(event: ev.InstancePlaced) -> str:
    placement = event.placement
    chosen = f"chosen from {count(len(event.candidates), 'candidate')}" if event.candidates else "as it ran"
    less = f"; {placement.note}" if placement.note else ""
    return (
        f"{event.instance_id} was placed (attempt {placement.attempt}) on {where(placement)} "
        f"with {placement.engine} in {placement.dtype}, context {placement.context}, {chosen}{less}"
    )


@sentence.register
def _(event: ev.InstanceReady) -> str:
    return f"{event.instance_id} is ready, {event.load_s:.1f} s after its placement"


@sentence.register
def _(event: ev.InstanceSetBack) -> str:
    return (
        f"{event.instance_id} was set back, attempt {event.attempt}, to be placed again at "
        f"{moment(event.retry_at)}: {reason(event.cause)}"
    )


@sentence.register
def _(event: ev.InstanceFailed) -> str:
    return f"{event.instance_id} was given up after {count(event.attempts, 'attempt')}: {reason(event.cause)}"


@sentence.register
def _(event: ev.InstanceRetried) -> str:
    return f"{event.instance_id} is to be tried anew, as {event.by} asked"


@sentence.register
def _(event: ev.InstanceDeleted) -> str:
    return f"{event.instance_id} is no longer wanted"


@sentence.register
def _(event: ExpertEvent) -> str:
    return expert_words.sentence(event)


@sentence.register
def _(event: ev.RunnerStatusChanged) -> str:
    return runner_status(f"{event.runner_id} of {event.instance_id}", event.status)


@sentence.register
def _(event: ev.TaskCreated) -> str:
    choice = f" (choice {event.index})" if event.index else ""
    return (
        f"{event.task_id}{choice}, a {event.kind} with {event.model_id}, was given to "
        f"{event.runner_id} of {event.instance_id}"
    )


@sentence.register
def _(event: ev.TaskCancelRequested) -> str:
    return f"{event.task_id} is to be cancelled: {event.reason}"


@sentence.register
def _(event: ev.TaskFinished) -> str:
    usage, times = event.usage, event.timings
    return (
        f"{event.task_id} finished ({event.finish_reason}) with {count(usage.completion_tokens, 'token')} "
        f"for a prompt of {usage.prompt_tokens}: {times.queued_s:.2f} s queued, "
        f"{times.prefill_s:.2f} s prefill, {times.decode_s:.2f} s decode"
    )


@sentence.register
def _(event: ev.TaskFailed) -> str:
    made = f" after {count(event.usage.completion_tokens, 'token')}" if event.usage.completion_tokens else ""
    return f"{event.task_id} failed{made}: {reason(event.cause)}"


@sentence.register
def _(event: ev.TaskCancelled) -> str:
    made = count(event.usage.completion_tokens, "token")
    return f"{event.task_id} was cancelled after {made}: {event.reason}"
