"""The state as JSON: its tables by name, and a part of it by path."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from api.errors import not_found
from api.routes import Call
from projections.state import ClusterState, Download, Experts, Instance, Link, Model, Node, Runner, Task


class StateView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decisions rest on, as of event ``seq``; ``at`` is that event's time."""

    seq: int
    epoch: int
    at: float
    master: str
    nodes: dict[str, Node]
    models: dict[str, Model]
    downloads: dict[str, dict[str, Download]]
    """By node, then by model."""
    instances: dict[str, Instance]
    runners: dict[str, Runner]
    tasks: dict[str, Task]
    open_tasks: dict[str, int]
    """By instance."""
    links: dict[str, dict[str, Link]]
    """By node, then by the node that it reaches."""
    experts: dict[str, Experts]
    """By instance, of those with the load balancer of experts."""


async def get_state(call: Call[None, None]) -> StateView:
    """Show the whole state."""
    return state_view(call.gateway.state)


async def get_state_part(call: Call[None, None]) -> Any:
    """Show a part of the state, by a path of names such as ``instances/instance-1a2b/status``."""
    path = call.part("path")
    found = _descend(msgspec.to_builtins(state_view(call.gateway.state)), path.strip("/").split("/"))
    if found is _NOTHING:
        raise not_found(f"The state has nothing at {path!r}; GET /state shows all of it.")
    return found


def state_view(state: ClusterState) -> StateView:
    """The view of ``state``; it shares the entities and is good until the state moves on."""
    downloads: dict[str, dict[str, Download]] = {}
    for (node_id, model_id), download in state.downloads.items():
        downloads.setdefault(node_id, {})[model_id] = download
    links: dict[str, dict[str, Link]] = {}
    for (node_id, other), link in state.links.items():
        links.setdefault(node_id, {})[other] = link
    return StateView(
        seq=state.seq,
        epoch=state.epoch,
        at=state.at,
        master=state.master,
        nodes=state.nodes,
        models=state.models,
        downloads=downloads,
        instances=state.instances,
        runners=state.runners,
        tasks=state.tasks,
        open_tasks=state.open_tasks,
        links=links,
        experts=state.experts,
    )


_NOTHING = object()


def _descend(value: Any, names: list[str]) -> Any:
    """Follow ``names``; a key may hold slashes, as model ids do, so it may take several of them."""
    if not names:
        return value
    if isinstance(value, list):
        by_index = {str(index): row for index, row in enumerate(cast("list[Any]", value))}
        return _descend(by_index[names[0]], names[1:]) if names[0] in by_index else _NOTHING
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        for taken in range(1, len(names) + 1):
            key = "/".join(names[:taken])
            if key in table:
                return _descend(table[key], names[taken:])
    return _NOTHING
