"""What a policy is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Placement: TypeAlias = NDArray[np.int32]
"""``[L, P]``: the logical expert in each physical slot."""
Loads: TypeAlias = NDArray[np.float64]
"""``[L, E]``: rows of each logical expert."""
Counts: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


def indices(n: int) -> Counts:
    """0 to n - 1, ``[n]``."""
    return np.arange(n, dtype=np.int64)


class Malformed(ValueError):
    """Placement, loads and topology don't fit each other; the message says where."""


@dataclass(frozen=True)
class Topology:
    """Where the ranks are."""

    nodes: tuple[int, ...]
    """The node of each rank."""
    groups: int = 1
    """Expert groups, of consecutive experts, that the router restricts a token to; 1 where it does not."""

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.nodes)

    @cached_property
    def n_nodes(self) -> int:
        """Nodes that they are on."""
        return len(set(self.nodes))


@dataclass(frozen=True)
class Budget:
    """What a move may cost."""

    expert_bytes: int = 0
    """Bytes of one expert of one layer, all tensors."""
    max_bytes: int = 0
    """Bytes that the busiest rank may receive, over all layers; 0 for no limit."""

    @property
    def max_experts(self) -> int | None:
        """Experts that one rank may receive; None for no limit."""
        if not self.max_bytes or not self.expert_bytes:
            return None
        return self.max_bytes // self.expert_bytes


@dataclass(frozen=True)
class Proposal:
    """Another placement, and what it would have made of the loads that it was proposed for."""

    placement: Placement
    now: float
    """Balance under the old placement, see `metrics.balance`."""
    predicted: float
    """Balance under the new one."""
    bound: float
    """The balance that no placement with these slots can exceed, see `metrics.bound`."""
    moved: int
    """Experts that ranks must receive, over all ranks and layers."""
    bytes_total: int
    bytes_busiest: int
    """Bytes that the busiest rank must receive, over all layers."""


def check(placement: Placement, n_experts: int, topology: Topology) -> None:
    """Raise `Malformed` unless every expert is in some slot, slots divide by ranks and experts by groups."""
    if placement.ndim != 2:
        raise Malformed(f"a placement is [layers, slots], and this one has the shape {list(placement.shape)}")
    n_layers, n_slots = placement.shape
    if topology.ranks < 1 or n_slots % topology.ranks:
        raise Malformed(f"{n_slots} slots can't be divided by {topology.ranks} ranks")
    if topology.groups < 1 or n_experts % topology.groups:
        raise Malformed(f"{n_experts} experts can't be divided into {topology.groups} groups")
    if n_slots < n_experts:
        raise Malformed(f"{n_slots} slots have no room for {n_experts} experts")
    if placement.size and not 0 <= placement.min() <= placement.max() < n_experts:
        raise Malformed(f"a slot holds an expert outside of 0 to {n_experts - 1}")
    placed = np.zeros((n_layers, n_experts), bool)
    placed[np.arange(n_layers)[:, None], placement] = True
    missing = np.argwhere(~placed)
    if len(missing):
        layer, expert = (int(each) for each in missing[0])
        raise Malformed(f"expert {expert} of layer {layer} is in no slot")


def check_loads(loads: Loads, placement: Placement) -> None:
    """Raise `Malformed` unless there is one finite load, zero or more, for each expert of each layer."""
    if loads.ndim != 2 or len(loads) != len(placement):
        raise Malformed(
            f"loads are [{len(placement)}, experts], and these have the shape {list(loads.shape)}"
        )
    if not np.isfinite(loads).all() or (loads < 0).any():
        raise Malformed("a load is negative, infinite or no number")
