"""``/models``: what is known, where it is, and how more comes in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from actors.downloader import Describe, Import, Remove
from api.decoding import Name
from api.errors import ApiError, invalid
from api.model_views import ModelView, model_view
from api.routes import Call
from projections.state import Model

_VISIBLE_S = 30.0
"""Seconds for what the downloader did to be in the log."""


class AddModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model to add: one from a hub or the catalogue by its id, or one of this machine by its path."""

    model_id: Name = ""
    """A Hugging Face repository, or the id that the model at ``path`` gets."""
    path: Annotated[str, Meta(max_length=4096)] = ""
    """A directory with config.json and safetensors, or a GGUF file, on the node that answers."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All known models."""

    models: list[ModelView]


class ModelRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """The files of this model are gone from this node."""

    model_id: str


async def list_models(call: Call[None, None]) -> ModelList:
    """List models with their status and where their files are."""
    state = call.gateway.state
    return ModelList(models=[model_view(state, model) for model in state.models.values()])


async def add_model(call: Call[AddModel, None]) -> ModelView:
    """Make a model known.

    With a ``path`` its files are taken in; without, it is looked up by its id, and its files are fetched
    when it is first placed.
    """
    gateway, body = call.gateway, call.body
    if body.path:
        path = Path(body.path)
        if not path.is_absolute():
            raise invalid("path must be absolute: the node has a working directory of its own.", param="path")
        wanted = body.model_id or path.name.removesuffix(".gguf")
        try:
            model_id: str = (await gateway.library(Import(path, wanted))).model_id
        except OSError as error:
            raise ApiError(422, f"{path} can't be taken in: {error}.", code="model_files_broken") from error
    elif body.model_id:
        model_id = (await gateway.library(Describe(body.model_id))).card.model_id
    else:
        raise invalid("Name a model_id, or the path of a model on this machine.", param="model_id")
    await gateway.wait_until(lambda state: state.models.get(model_id), _VISIBLE_S)
    return model_view(gateway.state, gateway.state.models[model_id])


async def remove_model(call: Call[None, None]) -> ModelRemoved:
    """Delete a model's files from this node's writable directories."""
    gateway, model_id = call.gateway, call.part("model_id")
    model = _known(call, model_id)
    used = [i.instance_id for i in gateway.state.instances.values() if i.model_id == model_id]
    if used:
        message = f"{model_id} is run by {', '.join(used)}; delete that first: DELETE /instance/{used[0]}."
        raise ApiError(409, message, code="model_in_use")
    await gateway.library(Remove(model.model_id))
    return ModelRemoved(model_id=model_id)


def _known(call: Call[None, None], model_id: str) -> Model:
    model = call.gateway.state.models.get(model_id)
    if model is None:
        message = f"There is no model {model_id!r}; GET /models lists them."
        raise ApiError(404, message, code="model_not_found")
    return model
