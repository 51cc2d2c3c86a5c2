"""The first placement of an instance's experts, when nothing is known of their load."""

from __future__ import annotations

from engines.experts import maps
from events.base import Event
from events.expert_events import ExpertsPlaced
from events.values import ModelCard, Placement
from projections.state import ClusterState, Experts


def experts_placed(
    state: ClusterState, instance_id: str, card: ModelCard, placement: Placement
) -> list[Event]:
    """What a placement with EPLB needs beforehand: maps for as many ranks and slots as it has.

    What an instance has learned stays, as long as it fits.
    """
    if placement.eplb is None:
        return []
    slots, ranks = card.n_experts + placement.eplb.redundant_experts, len(placement.ranks)
    known = state.experts.get(instance_id)
    if known is not None and _fits(known, card, slots, ranks):
        return []
    first = maps.initial(card.n_experts, slots, ranks)
    return [
        ExpertsPlaced(
            instance_id=instance_id,
            epoch=known.epoch + 1 if known else 1,
            ranks=ranks,
            experts=card.n_experts,
            maps=[list(first) for _ in range(card.n_moe_layers)],
            reason=_reason(known, slots, ranks),
        )
    ]


def _fits(known: Experts, card: ModelCard, slots: int, ranks: int) -> bool:
    shape = (known.ranks, known.experts, len(known.maps), len(known.maps[0]))
    return shape == (ranks, card.n_experts, card.n_moe_layers, slots)


def _reason(known: Experts | None, slots: int, ranks: int) -> str:
    if known is None:
        return "nothing is known of their load yet, so copies are dealt out evenly"
    return (
        f"what was learned is for {len(known.maps[0])} slots on {known.ranks} ranks, and there are {slots} "
        f"on {ranks} now"
    )
