"""``GET /instance/previews``: where a model would run, with every candidate's numbers, without effect."""

from __future__ import annotations

import msgspec

from actors.placement import DoesNotFit, place
from actors.refusal import Rejected
from api.errors import not_found
from api.routes import Call
from api.settings_wish import Wish
from events.values import Candidate, Cause, Placement, PlacementSettings
from projections.state import ClusterState, Model

_SHORT_CONTEXT = 2048


class PreviewQuery(Wish, frozen=True, kw_only=True):
    """The model, and the settings to begin with."""

    model_id: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What one variant of the settings would come to. ``cause`` says why where it does not fit."""

    title: str
    settings: PlacementSettings
    fits: bool
    placement: Placement | None
    candidates: list[Candidate]
    cause: Cause | None


class PreviewList(msgspec.Struct, frozen=True, kw_only=True):
    """The settings asked for, then variants of them."""

    model_id: str
    previews: list[Preview]


async def previews(call: Call[None, PreviewQuery]) -> PreviewList:
    """Preview where a model would be placed, with several settings and all candidates."""
    state, query = call.gateway.state, call.query
    model = state.models.get(query.model_id)
    if model is None:
        message = f"No model {query.model_id!r} is known here; POST /models makes it known."
        raise not_found(message, code="model_not_found")
    return PreviewList(
        model_id=model.model_id,
        previews=[_preview(state, model, title, s) for title, s in _variants(model, query)],
    )


def _variants(model: Model, query: PreviewQuery) -> list[tuple[str, PlacementSettings]]:
    asked = query.settings()
    longest = model.card.max_context
    variants = {
        "as asked": asked,
        "one sequence at a time": msgspec.structs.replace(asked, batch=1),
        "short context": msgspec.structs.replace(asked, context=min(_SHORT_CONTEXT, longest)),
        "all the context of the model": msgspec.structs.replace(asked, context=longest),
        "as float32": msgspec.structs.replace(asked, dtype="float32"),
        "as bfloat16": msgspec.structs.replace(asked, dtype="bfloat16"),
    }
    return [(title, s) for title, s in variants.items() if title == "as asked" or s != asked]


def _preview(state: ClusterState, model: Model, title: str, settings: PlacementSettings) -> Preview:
    placement: Placement | None = None
    candidates: list[Candidate] = []
    cause: Cause | None = None
    try:
        placement, candidates = place(state, model, settings, seed="preview", attempt=1)
    except DoesNotFit as refusal:
        cause, candidates = refusal.cause, refusal.candidates
    except Rejected as refusal:
        cause = refusal.cause
    return Preview(
        title=title,
        settings=settings,
        fits=placement is not None,
        placement=placement,
        candidates=candidates,
        cause=cause,
    )
