"""Which models an engine can attend as: a pure function, for placement and for loading."""

from __future__ import annotations

from events.values import ModelCard

KEEPS_ALL = frozenset({"torch"})
"""Engines whose layers all keep keys and values, and see everything that was kept."""


def attention_refusal(card: ModelCard, context: int) -> str | None:
    """Why an engine of `KEEPS_ALL` can't serve the model with ``context`` tokens; None where it can.

    Without a full stop.
    """
    if card.other_layers:
        return (
            f"The torch engine keeps keys and values, which {', '.join(card.other_layers)} layers of "
            f"{card.model_type} models have not; use another engine"
        )
    if 0 < card.window < context:
        return (
            f"{card.model_id} attends within {card.window} tokens, which the torch engine does not do yet; "
            f"use another engine, or a context of at most {card.window}"
        )
    return None
