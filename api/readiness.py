"""``GET /instance/await``: wait until an instance is ready, or learn at once why it will not be."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from api.answers import encode
from api.closing import unless_closing
from api.errors import RETRY_S, ApiError, invalid, not_found
from api.instance_views import InstanceView, Progress, instance_view, progress
from api.routes import Call
from api.sse import EventStream, event
from projections.state import ClusterState, Instance


class AwaitQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which instance; or which model, any instance of which will do. ``timeout`` is in seconds."""

    instance_id: str = ""
    model_id: str = ""
    timeout: Annotated[float, Meta(ge=0, le=86_400)] = 600.0


async def await_instance(call: Call[None, AwaitQuery]) -> InstanceView | web.StreamResponse:
    """Wait until an instance is ready.

    Answers at once where it has failed (503) or is deleted (404), and after ``timeout`` with 504. Asked for
    an event stream, it sends ``progress`` events, then one ``ready`` (the instance) or ``error``.
    """
    query = call.query
    if not query.instance_id and not query.model_id:
        raise invalid("Name an instance_id or a model_id.", param="instance_id")
    _check(call.gateway.state, query)
    if call.wants_events():
        return await _follow(call)
    found = await _changed(call, None, _deadline(query))
    return instance_view(call.gateway.state, found)


async def _follow(call: Call[None, AwaitQuery]) -> web.StreamResponse:
    """Report every step; each is a difference of the committed state."""
    state, query, deadline = call.gateway.state, call.query, _deadline(call.query)
    async with EventStream(call.request, patient=True) as stream:
        try:
            last: Progress | None = None
            while True:
                if last is None:
                    instance = _check(state, query)
                else:
                    instance = await _changed(call, last, deadline)
                last = progress(state, instance)
                await stream.send(event(encode(last), name="progress"))
                if instance.status == "ready":
                    await stream.send(event(encode(instance_view(state, instance)), name="ready"))
                    break
        except ApiError as error:
            await stream.send(event(encode(error.body), name="error"))
    return stream.response


def _deadline(query: AwaitQuery) -> float:
    return asyncio.get_running_loop().time() + query.timeout


async def _changed(call: Call[None, AwaitQuery], last: Progress | None, deadline: float) -> Instance:
    """The instance once it is ready, or (with ``last``) once its progress differs. Raises `ApiError`."""

    gateway, query = call.gateway, call.query

    def look(state: ClusterState) -> Instance | ApiError | None:
        try:
            instance = _check(state, query)
        except ApiError as error:
            return error
        moved = last is not None and progress(state, instance) != last
        return instance if moved or instance.status == "ready" else None

    left = max(0.0, deadline - asyncio.get_running_loop().time())
    try:
        found = await unless_closing(call.request.app, gateway.wait_until(look, left))
    except TimeoutError:
        raise _late(_check(gateway.state, query), query) from None
    if isinstance(found, ApiError):
        raise found
    return found


def _check(state: ClusterState, query: AwaitQuery) -> Instance:
    """The instance that is nearest to being ready. Raises `ApiError` where there is none or it has failed."""
    if query.instance_id:
        named = state.instances.get(query.instance_id)
        wanted = [named] if named else []
    else:
        wanted = [i for i in state.instances.values() if i.model_id == query.model_id]
    if not wanted:
        raise _missing(query)
    best = min(wanted, key=lambda i: ("ready", "placed", "waiting", "failed").index(i.status))
    if best.status == "failed":
        raise _failed(best)
    return best


def _missing(query: AwaitQuery) -> ApiError:
    if query.instance_id:
        message = f"There is no instance {query.instance_id!r}; GET /instance lists those that are."
        return not_found(message, code="instance_not_found")
    message = f"No instance of {query.model_id!r} is wanted; POST /instance places one."
    return not_found(message, code="model_not_running")


def _failed(instance: Instance) -> ApiError:
    why = f": {instance.cause.message}" if instance.cause else "."
    message = (
        f"{instance.instance_id} has failed {instance.attempts} times and is not tried again by itself{why} "
        f"POST /instance/{instance.instance_id}/retry tries it again."
    )
    detail = dict(instance.cause.detail) if instance.cause else {}
    code = instance.cause.code if instance.cause else "unknown"
    return ApiError(503, message, code="instance_failed", detail={**detail, "cause": code})


def _late(instance: Instance, query: AwaitQuery) -> ApiError:
    why = f" Its last trouble was: {instance.cause.message}" if instance.cause else ""
    message = f"{instance.instance_id} is {instance.status}, not ready, after {query.timeout:g} s.{why}"
    return ApiError(504, message, code="not_ready_in_time", retry_after=RETRY_S)
