"""``/instance``: place a model, look, wait, retry, delete."""

from __future__ import annotations

from typing import Any

import msgspec

from api.decoding import Name
from api.errors import invalid, not_found
from api.instance_views import InstanceView, instance_view
from api.routes import Call
from api.settings_wish import Wish
from events.commands import DeleteInstance, RetryInstance
from events.ids import fresh
from projections.state import Instance

_KEY_LENGTH = 200


class PlaceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A wish: run this model, in this way."""

    model_id: Name
    placement_settings: Wish = Wish()


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for is committed under ``command_id``; repeating it with that key changes nothing.

    ``instance`` is as it is now, None where it has been deleted since.
    """

    command_id: str
    instance_id: str
    instance: InstanceView | None


class InstanceList(msgspec.Struct, frozen=True, kw_only=True):
    """All instances that are wanted."""

    instances: list[InstanceView]


async def place_instance(call: Call[PlaceRequest, None]) -> Accepted:
    """Place an instance of a model.

    The answer comes once the decision is in the log; GET /instance/await waits until it is ready. A model
    that fits nowhere is refused with the numbers of every candidate.
    """
    command_id = idempotency_key(call, "place")
    body = call.body
    instance_id = await call.gateway.place(body.model_id, body.placement_settings.settings(), command_id)
    return _accepted(call, command_id, instance_id)


async def list_instances(call: Call[None, None]) -> InstanceList:
    """List the instances."""
    state = call.gateway.state
    return InstanceList(instances=[instance_view(state, i) for i in state.instances.values()])


async def get_instance(call: Call[None, None]) -> InstanceView:
    """Show one instance."""
    return instance_view(call.gateway.state, _named(call))


async def delete_instance(call: Call[None, None]) -> Accepted:
    """Delete an instance.

    Its open requests end with an error, its runners stop.
    """
    command_id, instance_id = idempotency_key(call, "delete"), call.part("instance_id")
    await call.gateway.ask(DeleteInstance(command_id=command_id, instance_id=instance_id))
    return _accepted(call, command_id, instance_id)


async def retry_instance(call: Call[None, None]) -> Accepted:
    """Try a failed or waiting instance again, now."""
    command_id, instance_id = idempotency_key(call, "retry"), call.part("instance_id")
    await call.gateway.ask(RetryInstance(command_id=command_id, instance_id=instance_id, by="api"))
    return _accepted(call, command_id, instance_id)


def idempotency_key(call: Call[Any, Any], kind: str) -> str:
    """The client's key for this command, or a new one. Raises `ApiError` (400) for one that is unusable."""
    key = call.request.headers.get("Idempotency-Key", "")
    if len(key) > _KEY_LENGTH or not key.isprintable():
        raise invalid(
            f"Idempotency-Key must be at most {_KEY_LENGTH} printable characters.", param="Idempotency-Key"
        )
    return key or fresh(kind)


def _accepted(call: Call[Any, Any], command_id: str, instance_id: str) -> Accepted:
    state = call.gateway.state
    instance = state.instances.get(instance_id)
    view = instance_view(state, instance) if instance else None
    return Accepted(command_id=command_id, instance_id=instance_id, instance=view)


def _named(call: Call[None, None]) -> Instance:
    instance_id = call.part("instance_id")
    instance = call.gateway.state.instances.get(instance_id)
    if instance is None:
        message = f"There is no instance {instance_id!r}; GET /instance lists those that are."
        raise not_found(message, code="instance_not_found")
    return instance
