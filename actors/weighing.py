"""Whether more nodes are faster: a group that is predicted so is chosen instead of the one with the fewest.

Pure, like `actors.placement`, which asks where the user left it open how many ranks and which node. A group
has to earn its nodes: it is taken where its step is predicted to be `MARGIN` times as fast as that of
everything with fewer. Nothing is weighed where speeds or links were not measured, nor for mixtures of
experts, of which a step reads some weights and the card does not say how many.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from actors.sharding import Group, Latency, Need, Seat, Shard, grown, pipeline_groups, shared
from actors.step_time import Load, Ways, load_of, predicted
from engines.divisibility import TENSOR_TYPES, tensor_refusal
from events.values import Dtype, ModelCard, ShardStrategy
from projections.phrases import count, milliseconds

MARGIN = 1.2
"""How many times as fast a group with more nodes has to be; a prediction is not exact."""
POOL = 32
"""Machines that a faster group is looked for on: the fastest ones."""
WORLD = 8
"""The most ranks of a tensor group that is chosen unasked."""


Timed = tuple[float, Group]
"""A group with the seconds that a step of it is predicted to take."""


class Question(NamedTuple):
    """What is to be placed, and what is known of the ways between nodes."""

    card: ModelCard
    strategy: ShardStrategy
    need: Callable[[Dtype], Need]
    latency: Latency
    ways: Ways


def weighed(
    fewest: Group, fitting: Sequence[Seat], seats: Sequence[Seat], question: Question
) -> tuple[Group, str]:
    """The group to take, and a note with the predictions that decided; without a note where nothing did.

    ``fewest`` is the one with the fewest nodes, ``fitting`` are the devices that hold the whole model,
    ``seats`` all that may take a rank.
    """
    first = _step(fewest, question)
    if question.card.n_experts or first is None:
        return fewest, ""
    others = sorted(_others(fewest, seats, question), key=_order)
    if not others:
        return fewest, ""
    alone = min(_alone(fitting, question), default=first)
    taken = first, fewest
    bar = min(first, alone)
    for seconds, group in others:
        if seconds * MARGIN <= bar:
            taken, bar = (seconds, group), seconds
    fastest = min(others, key=lambda each: each[0])
    return taken[1], _note([taken, (first, fewest), fastest], alone)


def _note(shown: list[Timed], alone: float) -> str:
    """The predictions: of what is taken, the fewest nodes, the fastest group, a faster device than chosen."""
    said = list(dict.fromkeys(map(_said, shown)))
    if alone < shown[1][0]:
        said.append(f"{milliseconds(alone)} on the fastest device that holds it")
    return (
        f"a step of decode is predicted to take {', '.join(said)}; what has more nodes is taken where it is "
        f"{MARGIN} times as fast"
    )


def _said(found: Timed) -> str:
    return f"{milliseconds(found[0])} on {_words(found[1])}"


def _words(group: Group) -> str:
    if len(group.shards) == 1:
        return "one device"
    return f"{len(group.shards)} {group.strategy} ranks of {count(_n_nodes(group), 'node')}"


def _n_nodes(group: Group) -> int:
    return len({shard.seat.candidate.node_id for shard in group.shards})


def _order(found: Timed) -> tuple[int, int, float]:
    seconds, group = found
    return _n_nodes(group), len(group.shards), seconds


def _step(group: Group, question: Question) -> float | None:
    return predicted(group, _load(group.shards[0].seat, question), question.ways)


def _load(seat: Seat, question: Question) -> Load:
    dtype = seat.candidate.dtype
    return load_of(question.need(dtype), dtype)


def _alone(fitting: Sequence[Seat], question: Question) -> list[float]:
    """Steps on the fastest device of each sort that holds the whole model."""
    fastest: dict[tuple[str, str], Seat] = {}
    for seat in fitting:
        sort = seat.kind, seat.candidate.dtype
        fastest[sort] = max(fastest.get(sort, seat), seat, key=lambda each: each.speed)
    groups = [Group("auto", [Shard(seat, 0, question.card.n_layers, 0)]) for seat in fastest.values()]
    return [step for group in groups if (step := _step(group, question)) is not None]


def _others(fewest: Group, seats: Sequence[Seat], question: Question) -> Iterator[Timed]:
    """The fastest group of each kind and size, with its step; none fetches files where ``fewest`` has all."""
    fetches = not all(shard.seat.candidate.has_files for shard in fewest.shards)
    alike: dict[tuple[str, Dtype], list[Seat]] = {}
    for seat in seats:
        if seat.speed > 0 and (fetches or seat.candidate.has_files):
            alike.setdefault((seat.candidate.engine, seat.candidate.dtype), []).append(seat)
    for key in sorted(alike):
        need, same = question.need(key[1]), alike[key]
        families = list(_tensors(same, need, question))
        if len(fewest.shards) > 1 and question.strategy in ("auto", "pipeline"):
            families.append(_pipelines(same, need, question))
        for groups in families:
            steps = [(step, group) for group in groups if (step := _step(group, question)) is not None]
            if steps:
                yield min(steps, key=_order_of_steps)


def _order_of_steps(found: Timed) -> tuple[float, list[tuple[str, str, str]]]:
    seconds, group = found
    return seconds, [shard.seat.key for shard in group.shards]


def _tensors(alike: Sequence[Seat], need: Need, question: Question) -> Iterator[list[Group]]:
    """Groups of each number of ranks that can share the model, on one CPU of a machine each."""
    card = question.card
    if question.strategy not in ("auto", "tensor") or card.model_type not in TENSOR_TYPES:
        return
    machines: dict[str, Seat] = {}
    for seat in alike:
        if seat.kind == "cpu" and "tensor" in seat.strategies:
            machines[seat.host] = min(machines.get(seat.host, seat), seat, key=_roomiest)
    pool = heapq.nsmallest(POOL, machines.values(), key=_fastest)
    for world in range(2, min(len(pool), WORLD) + 1):
        if tensor_refusal(card, world) is not None:
            continue
        share = need.tensor(world)
        able = [seat for seat in pool if seat.candidate.free_bytes >= share]
        found = grown(
            able,
            lambda seat: seat.speed,
            question.latency,
            lambda group, world=world: len(group) >= world,
            limit=world,
        )
        yield [Group("tensor", [Shard(seat, 0, card.n_layers, share) for seat in group]) for group in found]


def _pipelines(alike: Sequence[Seat], need: Need, question: Question) -> list[Group]:
    """Pipelines over the fastest nodes."""
    usable = sorted((seat for seat in alike if "pipeline" in seat.strategies), key=_fastest)
    nodes = set(list(dict.fromkeys(seat.candidate.node_id for seat in usable))[:POOL])
    near = shared([seat for seat in usable if seat.candidate.node_id in nodes])
    return pipeline_groups(need, near, question.latency, lambda seat: seat.speed)


def _roomiest(seat: Seat) -> tuple[object, ...]:
    return -seat.candidate.free_bytes, seat.key


def _fastest(seat: Seat) -> tuple[object, ...]:
    return -seat.speed, seat.key
