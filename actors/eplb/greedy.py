"""The greedy policy of DeepSeek's EPLB, as described: replicate what is hot, pack the heaviest first.

Global: replicas by largest load, packed on ranks. Hierarchical, where the router's expert groups divide by
the nodes: groups are packed on nodes first, and each node replicates and packs its own experts, so that a
token's experts stay together. It has no memory: which rank an expert lands on owes nothing to where it was.

Source: https://github.com/deepseek-ai/EPLB (README), DeepSeek-V3 technical report, section 3.4.
"""

from __future__ import annotations

import numpy as np

from actors.eplb.metrics import replicate
from actors.eplb.problem import Budget, Counts, Loads, Placement, Topology, indices
from actors.eplb.slots import by_bin, keep_slots, pack, part_replicas

VERSION = 1


def rearrange(placement: Placement, loads: Loads, topology: Topology, budget: Budget) -> Placement:
    """The greedy placement for these loads; the budget does not matter to it."""
    del budget
    n_slots, ranks = placement.shape[1], topology.ranks
    fresh = _hierarchical(loads, n_slots, topology) if _by_nodes(topology) else _global(loads, n_slots, ranks)
    return keep_slots(placement, part_replicas(fresh, loads, ranks), ranks)


def _by_nodes(topology: Topology) -> bool:
    """Whether whole groups can go to nodes of equal size, with the slots of a node in one piece."""
    size, rest = divmod(topology.ranks, topology.n_nodes)
    even = tuple(node for node in dict.fromkeys(topology.nodes) for _ in range(size)) == topology.nodes
    return topology.n_nodes > 1 and not rest and even and topology.groups % topology.n_nodes == 0


def _global(loads: Loads, n_slots: int, ranks: int) -> Placement:
    counts = replicate(loads, n_slots, ranks)
    names = _named(counts)
    shares = np.take_along_axis(loads / counts, names, axis=1)
    return by_bin(pack(shares, names, ranks), names)


def _hierarchical(loads: Loads, n_slots: int, topology: Topology) -> Placement:
    (n_layers, n_experts), n_nodes = loads.shape, topology.n_nodes
    size = n_experts // topology.groups
    by_group = loads.reshape(n_layers, topology.groups, size).sum(axis=2)
    groups = np.broadcast_to(indices(topology.groups), by_group.shape)
    ours = by_bin(pack(by_group, groups, n_nodes), groups)
    experts = (ours[:, :, None] * size + indices(size)).reshape(n_layers, n_experts)
    of_node = np.take_along_axis(loads, experts, axis=1).reshape(n_layers * n_nodes, -1)
    inside = _global(of_node, n_slots // n_nodes, topology.ranks // n_nodes)
    known = experts.reshape(n_layers * n_nodes, -1)
    return np.take_along_axis(known, inside, axis=1).reshape(n_layers, n_slots).astype(np.int32)


def _named(counts: Counts) -> Counts:
    """The expert of each replica, ``[L, P]``, ascending."""
    n_layers, n_experts = counts.shape
    experts = np.broadcast_to(indices(n_experts), counts.shape)
    return np.repeat(experts.ravel(), counts.ravel()).reshape(n_layers, -1)
