"""``GET /v1/models``: models as OpenAI's clients list them, those that answer now first."""

from __future__ import annotations

from typing import Literal

import msgspec

from api.errors import not_found
from api.model_views import ModelStatus, model_status
from api.routes import Call
from projections.state import ClusterState, Model


class OpenAIModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model. ``created`` is when an instance of it last became ready, in Unix seconds, else 0."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["cuebook"] = "cuebook"
    status: ModelStatus
    """Not OpenAI's: ``ready`` models answer now."""


class OpenAIModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All known models."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


async def list_models(call: Call[None, None]) -> OpenAIModelList:
    """List the models, ready ones first."""
    state = call.gateway.state
    models = [_view(state, model) for model in state.models.values()]
    return OpenAIModelList(data=sorted(models, key=lambda model: (model.status != "ready", model.id)))


async def get_model(call: Call[None, None]) -> OpenAIModel:
    """Show one model; a slash in its id may be written as %2F."""
    state, model_id = call.gateway.state, call.part("model")
    model = state.models.get(model_id)
    if model is None:
        raise not_found(f"There is no model {model_id!r}; GET /v1/models lists them.", code="model_not_found")
    return _view(state, model)


def _view(state: ClusterState, model: Model) -> OpenAIModel:
    ready = [i.ready_at for i in state.instances.values() if i.model_id == model.model_id]
    return OpenAIModel(
        id=model.model_id, created=int(max(ready, default=0.0)), status=model_status(state, model)
    )
