"""The cluster's state as tables for people."""

from __future__ import annotations

from api.cli.console import print_table, say
from api.state_view import StateView
from events.status import name
from projections.phrases import milliseconds, moment, size
from projections.state import Instance
from projections.words import status_detail


def show_state(view: StateView) -> None:
    """Print a state: nodes, links, instances, runners, open tasks, downloads, the last trouble."""
    if view.seq:
        say(f"Event {view.seq} of {moment(view.at)}, epoch {view.epoch}, master {_master(view)}")
    else:
        say("Before the first event: nothing is there.")
    for title, show in _SECTIONS.items():
        if title != "Links" or view.links:
            say(f"\n{title}", style="bold")
            show(view)


def _master(view: StateView) -> str:
    node = view.nodes.get(view.master)
    return f"{node.name} ({node.node_id})" if node else view.master or "none"


def _nodes(view: StateView) -> None:
    rows = [
        (
            node.name,
            node.node_id,
            ("up, leads" if node.node_id == view.master else "up") if node.up else "down",
            ", ".join(device.device_id for device in node.devices),
            ", ".join(f"{e.engine} {e.version}" for e in node.engines if e.ok) or "none",
            f"{size(node.memory_available)} of {size(node.memory_total)}",
            node.api_url,
        )
        for node in view.nodes.values()
    ]
    print_table(("name", "node", "is", "devices", "engines", "memory", "API"), rows, empty="none")


def _links(view: StateView) -> None:
    rows = [
        (
            view.nodes[node_id].name,
            view.nodes[other].name if other in view.nodes else other,
            milliseconds(link.latency_s),
            f"{size(int(link.bandwidth))}/s" if link.bandwidth else "not measured",
        )
        for node_id, ways in view.links.items()
        for other, link in ways.items()
    ]
    print_table(("from", "to", "round trip", "bandwidth"), rows, empty="none")


def _instances(view: StateView) -> None:
    rows = [
        (
            instance.model_id,
            instance.instance_id,
            instance.status,
            _where(instance),
            view.open_tasks.get(instance.instance_id, 0),
            instance.cause.message if instance.cause else "",
        )
        for instance in view.instances.values()
    ]
    print_table(("model", "instance", "is", "where", "open tasks", "last trouble"), rows, empty="none")


def _where(instance: Instance) -> str:
    placement = instance.placement
    if placement is None:
        return f"to be placed at {moment(instance.retry_at)}" if instance.status == "waiting" else ""
    places = ", ".join(f"{rank.device_id} of {rank.node_id}" for rank in placement.ranks)
    return f"{places}, {placement.engine} {placement.dtype}, {placement.batch} x {placement.context} tokens"


def _runners(view: StateView) -> None:
    rows = [
        (
            runner.runner_id,
            runner.instance_id,
            runner.device_id,
            name(runner.status),
            status_detail(runner.status),
        )
        for runner in view.runners.values()
    ]
    print_table(("runner", "instance", "device", "is", "detail"), rows, empty="none")


def _tasks(view: StateView) -> None:
    rows = [
        (
            task.task_id,
            task.model_id,
            task.kind,
            task.runner_id,
            task.cancelled and f"cancelling: {task.cancelled}",
        )
        for task in view.tasks.values()
    ]
    print_table(("task", "model", "kind", "runner", "note"), rows, empty="none")


def _downloads(view: StateView) -> None:
    rows = [
        (
            download.model_id,
            download.node_id,
            download.status,
            f"{size(download.done_bytes)} of {size(download.total_bytes)}",
            download.cause.message if download.cause else "",
        )
        for downloads in view.downloads.values()
        for download in downloads.values()
    ]
    print_table(("model", "node", "is", "fetched", "why"), rows, empty="none")


def _models(view: StateView) -> None:
    rows = [
        (
            model.model_id,
            f"{model.card.n_params / 1e6:.0f}M",
            size(model.card.weight_bytes),
            model.card.max_context,
            ", ".join(model.paths) or f"not here yet ({model.source.kind} {model.source.location})",
        )
        for model in view.models.values()
    ]
    print_table(("model", "parameters", "files", "context", "stored on"), rows, empty="none")


_SECTIONS = {
    "Nodes": _nodes,
    "Links": _links,
    "Instances": _instances,
    "Runners": _runners,
    "Open tasks": _tasks,
    "Downloads": _downloads,
    "Models": _models,
}
