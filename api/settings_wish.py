"""Placement settings as clients send them: `events.values.PlacementSettings` within bounds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from api.decoding import Name
from events.experts import EplbSettings, ExpertDispatch, ExpertFormat
from events.values import Dtype, PlacementSettings, ShardStrategy


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is to be placed. What is left out is chosen by the cluster; unknown keys are refused."""

    shard_strategy: ShardStrategy = "auto"
    context: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Tokens that one sequence may hold, prompt and answer; 0 takes the model's own, at most 8192."""
    batch: Annotated[int, Meta(ge=1, le=2**16)] = 8
    """Sequences decoded at the same time."""
    engine: Name = ""
    dtype: Dtype | Literal[""] = ""
    node_id: Name = ""
    device_id: Name = ""
    ranks: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Devices to spread over; 0 takes the fewest that can hold the model."""
    expert_dispatch: ExpertDispatch = "shared"
    expert_format: ExpertFormat = "plain"
    eplb: EplbSettings | None = None
    """Balance the load of experts over the ranks; with the strategy ``expert`` only, as the two above."""

    def settings(self) -> PlacementSettings:
        """The wish as commands carry it."""
        return PlacementSettings(
            shard_strategy=self.shard_strategy,
            context=self.context,
            batch=self.batch,
            engine=self.engine,
            dtype=self.dtype,
            node_id=self.node_id,
            device_id=self.device_id,
            ranks=self.ranks,
            expert_dispatch=self.expert_dispatch,
            expert_format=self.expert_format,
            eplb=self.eplb,
        )
