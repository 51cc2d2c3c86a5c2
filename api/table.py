"""Every route of the API."""

from __future__ import annotations

from api import health, instances, models, previews, readiness, records, state_view
from api.instance_views import Progress
from api.openai import chat, completions
from api.openai import models as openai_models
from api.openai.schema import ChatChunk, TextCompletion
from api.records import EventView
from api.routes import Route

_KEY = ("Idempotency-Key",)

ROUTES: tuple[Route, ...] = (
    Route(method="GET", path="/", handler=health.index, tag="health"),
    Route(method="GET", path="/healthz", handler=health.health, tag="health"),
    Route(method="GET", path="/health", handler=health.health, tag="health"),
    Route(method="GET", path="/readyz", handler=health.readiness, tag="health", also=(503,)),
    Route(
        method="POST",
        path="/instance",
        handler=instances.place_instance,
        tag="instances",
        status=201,
        errors=(404, 409, 413, 415, 422, 503, 507),
        headers=_KEY,
    ),
    Route(method="GET", path="/instance", handler=instances.list_instances, tag="instances"),
    Route(method="GET", path="/instance/previews", handler=previews.previews, tag="instances", errors=(404,)),
    Route(
        method="GET",
        path="/instance/await",
        handler=readiness.await_instance,
        tag="instances",
        errors=(404, 503, 504),
        events=Progress,
    ),
    Route(
        method="GET",
        path="/instance/{instance_id}",
        handler=instances.get_instance,
        tag="instances",
        errors=(404,),
    ),
    Route(
        method="DELETE",
        path="/instance/{instance_id}",
        handler=instances.delete_instance,
        tag="instances",
        errors=(404, 409, 503),
        headers=_KEY,
    ),
    Route(
        method="POST",
        path="/instance/{instance_id}/retry",
        handler=instances.retry_instance,
        tag="instances",
        errors=(404, 409, 415, 503),
        headers=_KEY,
    ),
    Route(method="GET", path="/models", handler=models.list_models, tag="models"),
    Route(
        method="POST",
        path="/models",
        handler=models.add_model,
        tag="models",
        status=201,
        errors=(404, 409, 413, 415, 422, 503, 507),
    ),
    Route(
        method="DELETE",
        path="/models/{model_id}",
        handler=models.remove_model,
        tag="models",
        errors=(404, 409, 422, 503),
        slashes="model_id",
    ),
    Route(method="GET", path="/v1/models", handler=openai_models.list_models, tag="openai"),
    Route(
        method="GET",
        path="/v1/models/{model}",
        handler=openai_models.get_model,
        tag="openai",
        errors=(404,),
        slashes="model",
    ),
    Route(
        method="POST",
        path="/v1/chat/completions",
        handler=chat.chat_completions,
        tag="openai",
        errors=(404, 413, 415, 503),
        events=ChatChunk,
    ),
    Route(
        method="POST",
        path="/v1/completions",
        handler=completions.completions,
        tag="openai",
        errors=(404, 413, 415, 503),
        events=TextCompletion,
    ),
    Route(method="GET", path="/state", handler=state_view.get_state, tag="record"),
    Route(
        method="GET",
        path="/state/{path}",
        handler=state_view.get_state_part,
        tag="record",
        errors=(404,),
        slashes="path",
    ),
    Route(
        method="GET",
        path="/events",
        handler=records.list_events,
        tag="record",
        events=EventView,
        headers=("Last-Event-ID",),
    ),
    Route(method="GET", path="/decisions", handler=records.list_decisions, tag="record"),
    Route(
        method="GET",
        path="/decisions/{decision_id}",
        handler=records.get_decision,
        tag="record",
        errors=(404,),
    ),
)
"""In the order in which they are tried; /openapi.json, made from them, is added by `api.app`."""
