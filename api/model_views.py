"""Models as the API shows them."""

from __future__ import annotations

from typing import Literal

import msgspec

from events.values import ModelCard, ModelSource
from projections.state import ClusterState, Download, Model

ModelStatus = Literal["ready", "starting", "failed", "downloading", "download_failed", "stored", "known"]
"""The best that can be said of a model: an instance answers, starts or has failed; its files are fetched,
were not to be had, or are here; or it is known and nothing of it is here."""


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A model: its card, where its files come from and are, who fetches it, and what runs it."""

    model_id: str
    status: ModelStatus
    card: ModelCard
    source: ModelSource
    paths: dict[str, str]
    """Directory by node."""
    downloads: list[Download]
    instances: list[str]


def model_view(state: ClusterState, model: Model) -> ModelView:
    """The view of one model."""
    return ModelView(
        model_id=model.model_id,
        status=model_status(state, model),
        card=model.card,
        source=model.source,
        paths=model.paths,
        downloads=[d for d in state.downloads.values() if d.model_id == model.model_id],
        instances=[i.instance_id for i in state.instances.values() if i.model_id == model.model_id],
    )


def model_status(state: ClusterState, model: Model) -> ModelStatus:
    """See `ModelStatus`."""
    instances = {i.status for i in state.instances.values() if i.model_id == model.model_id}
    if "ready" in instances:
        return "ready"
    downloads = {d.status for d in state.downloads.values() if d.model_id == model.model_id}
    if "running" in downloads:
        return "downloading"
    if instances & {"placed", "waiting"}:
        return "starting"
    if instances:
        return "failed"
    if model.paths:
        return "stored"
    return "download_failed" if downloads else "known"
