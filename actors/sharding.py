"""Placement over several ranks: which devices form a group, and what each of them holds.

Pure, like `actors.placement`, which calls it where one device is not enough or not what was asked for. A
group grows from a few promising nodes, once by those that add most and once by those that are nearest, so
that no cycles or subsets are enumerated: O(seeds x nodes x (group + log nodes)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import msgspec

from engines.divisibility import tensor_refusal
from engines.pipelines import pipeline_refusal
from events.values import Candidate, Dtype, ModelCard, ShardStrategy
from projections.phrases import size

SEEDS = 16
"""Nodes that a group is grown from: those with the most room."""

REASONS = 8
"""Numbers of ranks that a refusal gives its reasons for; each retry has it in the log."""

PROCESS_BYTES = 384 * 1024**2
"""Memory of a runner process beside its weights and caches: interpreter, libraries, tokenizer."""
ACTIVATION_SHARE = 20
"""One part in 20 of the weights for activations and the allocator's slack."""


class Seat(NamedTuple):
    """A device that may take a rank. ``kind`` is the device's.

    ``node_free`` bytes are free for all devices of its node that share the node's memory, None where this one
    has memory of its own.
    ``strategies`` are the ways in which its engine can share a model, ``speed`` is what it measured. Nodes of
    one ``host`` are one machine.
    """

    candidate: Candidate
    kind: str
    node_free: int | None
    strategies: tuple[ShardStrategy, ...]
    speed: float = 0.0
    host: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from all others: node, device, engine."""
        return self.candidate.node_id, self.candidate.device_id, self.candidate.engine


class Shard(NamedTuple):
    """What one rank of a group holds: layers ``[start, end)`` and the bytes reserved for them."""

    seat: Seat
    start: int
    end: int
    reserved: int


class Group(NamedTuple):
    """A group of ranks that can hold the model."""

    strategy: ShardStrategy
    shards: list[Shard]


class Need(NamedTuple):
    """Bytes of a model as it is to be loaded: all weights, the embeddings of them, KV caches."""

    card: ModelCard
    weights: int
    edges: int
    kv: int

    @property
    def layer(self) -> int:
        """One layer with its activations and its part of the KV caches."""
        weights = (self.weights - self.edges) // self.card.n_layers
        return weights + weights // ACTIVATION_SHARE + self.kv // self.card.n_layers

    def pipeline(self, layers: int) -> int:
        """A rank with ``layers`` layers. Any may be first or last: each counts the embeddings."""
        return PROCESS_BYTES + self.edges + layers * self.layer

    def tensor(self, world: int) -> int:
        """One of ``world`` ranks that share every layer; the embeddings are whole on each."""
        return PROCESS_BYTES + self.edges + -(-self.card.n_layers * self.layer // world)


Latency = Callable[[str, str], float | None]
"""Seconds between two nodes, None where they don't reach each other."""


class Even(NamedTuple):
    """A way to give each of so many ranks the same share of every layer.

    ``refusal`` says why they can't share the model, ``share`` the bytes of each, ``parts`` what those are.
    """

    strategy: ShardStrategy
    layers: int
    refusal: Callable[[int], str | None]
    share: Callable[[int], int]
    parts: Callable[[int], str] | None = None


Former = Callable[[Sequence[Seat], Latency, int], Group | str]
"""Forms a group of so many ranks (0: as few as possible), or says why there is none."""


def form_group(
    former: Callable[[Dtype], Former],
    seats: Sequence[Seat],
    latency: Latency,
    ranks: int,
    *,
    one_kind: bool = False,
) -> Group | str:
    """The group with the fewest nodes, then the fewest ranks, then the nearest; or why there is none.

    ``ranks`` is how many are wanted, 0 for as few as possible (at least two). All ranks of a group run the
    same engine in the same dtype, or their numbers would differ; with ``one_kind`` on devices of one kind.
    """
    groups: list[Group] = []
    refusals: list[str] = []
    alike: dict[tuple[str, Dtype, str], list[Seat]] = {}
    for seat in seats:
        key = seat.candidate.engine, seat.candidate.dtype, seat.kind if one_kind else ""
        alike.setdefault(key, []).append(seat)
    for key in sorted(alike):
        found = former(key[1])(shared(alike[key], ranks), latency, ranks)
        refusals.append(found) if isinstance(found, str) else groups.append(found)
    if groups:
        return min(groups, key=lambda group: _cost([shard.seat for shard in group.shards], latency))
    return "; ".join(dict.fromkeys(refusals))


def shared(seats: Sequence[Seat], ranks: int = 0) -> list[Seat]:
    """The seats with what is free for each if any ``ranks`` devices of its node, 0 for all, take one: most
    share its memory.
    """
    free: dict[str, list[int]] = {}
    for seat in seats:
        if seat.node_free is not None:
            free.setdefault(seat.candidate.node_id, []).append(seat.candidate.free_bytes)
    claims = {node: sum(sorted(each)[-ranks:]) for node, each in free.items()}
    return [_within(seat, seat.node_free, claims.get(seat.candidate.node_id, 0)) for seat in seats]


def _within(seat: Seat, node_free: int | None, claimed: int) -> Seat:
    if node_free is None or claimed <= node_free:
        return seat
    part = seat.candidate.free_bytes * node_free // claimed
    return seat._replace(candidate=msgspec.structs.replace(seat.candidate, free_bytes=part))


def pipeline_group(need: Need, seats: Sequence[Seat], latency: Latency, ranks: int) -> Group | str:
    """Ranks that take some layers each, in proportion to the room that they have."""
    refusal = pipeline_refusal(need.card)
    if refusal is not None:
        return refusal
    room = {seat.key: _layers_that_fit(need, seat) for seat in seats}
    able = [seat for seat in seats if room[seat.key] > 0]
    layers = need.card.n_layers

    def enough(chosen: Sequence[Seat]) -> bool:
        return sum(room[seat.key] for seat in chosen) >= layers and len(chosen) >= max(ranks, 2)

    if ranks > layers:
        return f"{ranks} ranks were asked for and the model has only {layers} layers"
    chosen = _grow(able, lambda seat: room[seat.key], latency, enough, limit=ranks or layers)
    if chosen is None:
        total = sum(room.values())
        return (
            f"no group of {ranks or 'two or more'} devices that reach each other holds all {layers} layers: "
            f"those with room ({len(able)} of {len(seats)}) hold {total} in all, "
            f"at {size(need.layer)} a layer"
        )
    return _pipeline(need, chosen, room)


def pipeline_groups(
    need: Need, seats: Sequence[Seat], latency: Latency, value: Callable[[Seat], float]
) -> list[Group]:
    """All pipelines that grow from nodes and devices that are best by ``value``."""
    if pipeline_refusal(need.card) is not None:
        return []
    room = {seat.key: _layers_that_fit(need, seat) for seat in seats}
    able = [seat for seat in seats if room[seat.key] > 0]
    layers = need.card.n_layers

    def enough(chosen: Sequence[Seat]) -> bool:
        return sum(room[seat.key] for seat in chosen) >= layers and len(chosen) > 1

    return [_pipeline(need, chosen, room) for chosen in grown(able, value, latency, enough, limit=layers)]


def _pipeline(need: Need, chosen: Sequence[Seat], room: dict[tuple[str, str, str], int]) -> Group:
    counts = _apportion(need.card.n_layers, [room[seat.key] for seat in chosen])
    shards: list[Shard] = []
    start = 0
    for seat, count in zip(chosen, counts, strict=True):
        shards.append(Shard(seat, start, start + count, need.pipeline(count)))
        start += count
    return Group("pipeline", shards)


def tensor_group(need: Need, seats: Sequence[Seat], latency: Latency, ranks: int) -> Group | str:
    """Ranks that take an equal part of every layer each."""
    refusal = partial(tensor_refusal, need.card)
    even = Even("tensor", need.card.n_layers, refusal, need.tensor)
    return even_group(even, seats, latency, ranks)


def even_group(even: Even, seats: Sequence[Seat], latency: Latency, ranks: int) -> Group | str:
    """Ranks that all hold the same number of bytes, as few as will do."""
    refusals: list[str] = []
    for world in [ranks] if ranks else range(2, len(seats) + 1):
        refusal = even.refusal(world)
        if refusal is not None:
            refusals.append(refusal)
            continue
        share = even.share(world)
        able = [seat for seat in seats if seat.candidate.free_bytes >= share]
        chosen = _grow(
            able,
            lambda seat: seat.candidate.free_bytes,
            latency,
            lambda group, world=world: len(group) >= world,
            limit=world,
        )
        if chosen is not None:
            return Group(even.strategy, [Shard(seat, 0, even.layers, share) for seat in chosen])
        parts = f" ({even.parts(world)})" if even.parts else ""
        refusals.append(
            f"{world} ranks need {size(share)} each{parts}, and too few devices that reach each other have "
            f"that ({len(able)} of {len(seats)} do)"
        )
    why = list(dict.fromkeys(refusals))
    if len(why) > REASONS:
        why[REASONS:] = [f"nor can more ranks, up to {len(seats)}"]
    return "; ".join(why) or "there are fewer than two devices"


def _layers_that_fit(need: Need, seat: Seat) -> int:
    room = seat.candidate.free_bytes - need.pipeline(0)
    return max(0, min(need.card.n_layers, room // max(1, need.layer)))


def _grow(
    seats: Sequence[Seat],
    value: Callable[[Seat], float],
    latency: Latency,
    enough: Callable[[Sequence[Seat]], bool],
    *,
    limit: int,
) -> list[Seat] | None:
    """The best of the groups that have `grown`, in its ring's order."""
    found = grown(seats, value, latency, enough, limit=limit)
    return min(found, key=lambda group: _cost(group, latency), default=None)


def grown(
    seats: Sequence[Seat],
    value: Callable[[Seat], float],
    latency: Latency,
    enough: Callable[[Sequence[Seat]], bool],
    *,
    limit: int,
) -> list[list[Seat]]:
    """Grow a group from each of the best nodes: those that are enough, each in its ring's order."""
    nodes = _by_node(seats, value)
    order = sorted(nodes, key=lambda node: _node_rank(nodes[node], value, node))
    found: list[list[Seat]] = []
    for start in order[:SEEDS]:
        others = [node for node in order if node != start]
        for way in (others, sorted(others, key=lambda node: _distance(latency, start, node))):
            group = _grow_along([start, *way], nodes, latency, enough, limit)
            if group is not None:
                found.append(group)
    return found


def _distance(latency: Latency, one: str, other: str) -> float:
    between = latency(one, other)
    return math.inf if between is None else between


def _cost(group: Sequence[Seat], latency: Latency) -> tuple[int, int, bool, float, str]:
    """What a group is chosen by: nodes, ranks, files to be fetched, the way once through its nodes."""
    members = list(dict.fromkeys(seat.candidate.node_id for seat in group))
    spread = sum(latency(a, b) or 0.0 for a, b in pairwise(members))
    lacking = not all(seat.candidate.has_files for seat in group)
    return len(members), len(group), lacking, spread, members[0]


def _grow_along(
    way: list[str],
    nodes: dict[str, list[Seat]],
    latency: Latency,
    enough: Callable[[Sequence[Seat]], bool],
    limit: int,
) -> list[Seat] | None:
    members: list[str] = []
    chosen: list[Seat] = []
    for node in way:
        if any(latency(node, member) is None for member in members):
            continue
        members.append(node)
        for seat in nodes[node]:
            if len(chosen) == limit:
                return None
            chosen.append(seat)
            if enough(chosen):
                return chosen
    return None


def _by_node(seats: Sequence[Seat], value: Callable[[Seat], float]) -> dict[str, list[Seat]]:
    """Each node's devices, those with the most room (or of the highest value) first."""
    nodes: dict[str, list[Seat]] = {}
    for seat in sorted(seats, key=lambda s: (-value(s), s.candidate.device_id)):
        nodes.setdefault(seat.candidate.node_id, []).append(seat)
    return nodes


def _node_rank(seats: list[Seat], value: Callable[[Seat], float], node: str) -> tuple[object, ...]:
    """Files at hand, then an accelerator, then the most room."""
    best = seats[0]
    return (
        not best.candidate.has_files,
        best.kind == "cpu",
        -sum(value(seat) for seat in seats),
        node,
    )


def _apportion(layers: int, room: Sequence[int]) -> list[int]:
    """Layers in proportion to room, at least one each and never more than fit (largest remainder)."""
    counts = [1] * len(room)
    while (left := layers - sum(counts)) > 0:
        open_ = [i for i in range(len(room)) if counts[i] < room[i]]
        free = sum(room[i] - counts[i] for i in open_)
        shares = {i: left * (room[i] - counts[i]) / free for i in open_}
        whole = {i: min(int(shares[i]), room[i] - counts[i]) for i in open_}
        if any(whole.values()):
            for i in open_:
                counts[i] += whole[i]
        else:
            for i in sorted(open_, key=lambda i: -shares[i])[:left]:
                counts[i] += 1
    return counts
