"""Models that a fresh install knows: a directory each, with its config.json and where its files come from."""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

from engines.cards import card_from_config
from events.values import ModelCard, ModelSource


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """source.json: what config.json can't say."""

    source: ModelSource
    weight_bytes: int
    n_params: int
    has_chat_template: bool


@cache
def entries() -> dict[str, tuple[ModelCard, ModelSource]]:
    """Card and source of every model in the catalogue, by id."""
    models = (
        entry for entry in resources.files(__name__).iterdir() if entry.joinpath("source.json").is_file()
    )
    return {model.name: _read(model) for model in sorted(models, key=lambda model: model.name)}


def _read(model: Traversable) -> tuple[ModelCard, ModelSource]:
    entry = msgspec.json.decode(model.joinpath("source.json").read_bytes(), type=_Entry)
    card = card_from_config(
        model.name,
        msgspec.json.decode(model.joinpath("config.json").read_bytes(), type=dict[str, object]),
        weight_bytes=entry.weight_bytes,
        n_params=entry.n_params,
        has_chat_template=entry.has_chat_template,
    )
    return card, entry.source
