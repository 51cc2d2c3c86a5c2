"""Placement with the strategy ``expert``: what each rank of the group holds, and what can't be.

Every rank holds all weights but those of the routed experts, and the KV caches of every sequence: attention
is replicated. Of each MoE layer it holds an equal share of the P physical slots. With the load balancer
there is a staging buffer for one layer's slots beside them.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import NamedTuple

import msgspec

from actors.candidates import DTYPE_BYTES, kv_bytes_per_token, weights_in_memory
from actors.refusal import Rejected
from actors.sharding import ACTIVATION_SHARE, PROCESS_BYTES, Even, Former, Group, even_group
from engines.experts.refusals import refusal, wish_of
from events.experts import ExpertFormat
from events.values import Dtype, ModelCard, Placement, PlacementSettings
from projections.phrases import size

_SCALE_BYTES = 4
"""Of the scale that int8 weights have for each output row."""


def check(card: ModelCard, settings: PlacementSettings) -> None:
    """Raise `Rejected` where the settings break a rule of `engines.experts.refusals`."""
    cause = refusal(wish_of(card, settings, settings.ranks))
    if cause is not None:
        raise Rejected(cause)


def former(card: ModelCard, settings: PlacementSettings, tokens: int, dtype: Dtype) -> Former:
    """How to form the group in ``dtype``, for ``tokens`` tokens in all KV caches together."""
    need = Need(card, settings, dtype, tokens)
    even = Even("expert", card.n_layers, need.refusal, need.share, need.parts)
    return partial(even_group, even)


class Need(NamedTuple):
    """Bytes of one rank of a group that shares the experts."""

    card: ModelCard
    settings: PlacementSettings
    dtype: Dtype
    tokens: int
    """Those of all KV caches together."""

    def refusal(self, world: int) -> str | None:
        """Why ``world`` ranks can't share the experts, without a full stop; None where they can."""
        cause = refusal(wish_of(self.card, self.settings, world))
        return cause.message.rstrip(".") if cause else None

    def share(self, world: int) -> int:
        """All that one of ``world`` ranks holds."""
        weights = self.common + self.experts(world)
        kv = kv_bytes_per_token(self.card, self.dtype) * self.tokens
        buffers = self.staging(world) + self.scratch(world)
        return PROCESS_BYTES + weights + weights // ACTIVATION_SHARE + kv + buffers

    def parts(self, world: int) -> str:
        """What weighs in the share, in words."""
        staging = f", {size(self.staging(world))} to stage a layer" if self.settings.eplb else ""
        scratch = f", {size(self.scratch(world))} to compute int8 in" if self.scratch(world) else ""
        common, experts = size(self.common), size(self.experts(world))
        return f"{common} for all but experts, {experts} for experts{staging}{scratch}"

    @property
    def common(self) -> int:
        """Weights that every rank holds: embeddings, attention, routers, dense layers, shared experts."""
        card = self.card
        routed = card.n_moe_layers * card.n_experts * expert_bytes(card, self.dtype, "plain")
        return max(0, weights_in_memory(card, self.dtype) - routed)

    def experts(self, world: int) -> int:
        """The slots of all MoE layers on one rank."""
        return self.card.n_moe_layers * self._layer(world)

    def staging(self, world: int) -> int:
        """Buffers for the slots of one layer on one rank, with the load balancer."""
        return self._layer(world) if self.settings.eplb else 0

    def scratch(self, world: int) -> int:
        """What int8 weights become floats in, one layer at a time; nothing for plain ones."""
        return 0 if self.settings.expert_format == "plain" else self._slots(world, "plain")

    def _layer(self, world: int) -> int:
        return self._slots(world, self.settings.expert_format)

    def _slots(self, world: int, form: ExpertFormat) -> int:
        """One layer's slots on one rank."""
        slots = wish_of(self.card, self.settings, world).slots // world
        return slots * expert_bytes(self.card, self.dtype, form)


def expert_bytes(card: ModelCard, dtype: Dtype, form: ExpertFormat) -> int:
    """Bytes of one expert of one layer: gate, up and down projection, with the scales of its format."""
    params = 3 * card.hidden_size * card.ffn_size
    if form == "plain":
        return params * DTYPE_BYTES[dtype]
    return params + _SCALE_BYTES * (2 * card.ffn_size + card.hidden_size)


def with_fewer(settings: PlacementSettings, card: ModelCard, ranks: int) -> PlacementSettings:
    """The settings for fewer ranks than asked for: with as many more redundant experts as they can share.

    One rank has all experts and is placed as any model is; where they are to be int8 it can't be.
    """
    if settings.shard_strategy != "expert":
        return settings
    if ranks == 1 and settings.expert_format == "plain":
        return msgspec.structs.replace(settings, shard_strategy="auto", expert_dispatch="shared", eplb=None)
    if settings.eplb is None:
        return settings
    missing = -wish_of(card, settings, ranks).slots % ranks
    redundant = settings.eplb.redundant_experts + missing
    return msgspec.structs.replace(
        settings, eplb=msgspec.structs.replace(settings.eplb, redundant_experts=redundant)
    )


def notes(settings: PlacementSettings, asked: PlacementSettings, card: ModelCard, group: Group) -> list[str]:
    """What is other than the user's ``settings``; ``asked`` are those that the group was formed by."""
    found: list[str] = []
    if settings.shard_strategy == "expert" and group.strategy != "expert":
        found.append("one rank has all experts, and nothing is balanced")
    if asked.eplb and settings.eplb and asked.eplb != settings.eplb:
        found.append(
            f"{asked.eplb.redundant_experts} redundant experts are held instead of "
            f"{settings.eplb.redundant_experts}, so that {len(group.shards)} ranks share all evenly"
        )
    on_node = Counter(shard.seat.candidate.node_id for shard in group.shards)
    uneven = len(set(on_node.values())) > 1
    if uneven and asked.eplb and asked.eplb.policy == "greedy" and card.expert_groups % len(on_node) == 0:
        held = " and ".join(str(ranks) for ranks in on_node.values())
        found.append(
            f"nodes have {held} ranks, so that the greedy policy balances over all ranks alike and not node "
            "by node"
        )
    return found


def with_experts(placement: Placement, settings: PlacementSettings) -> Placement:
    """The placement with how its experts are served."""
    return msgspec.structs.replace(
        placement,
        expert_dispatch=settings.expert_dispatch,
        expert_format=settings.expert_format,
        eplb=settings.eplb,
    )
