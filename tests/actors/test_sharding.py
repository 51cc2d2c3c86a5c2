"""Placement over several devices: every shard fits, the shards make the whole, and what can't be is said."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.cards import QUANTIZED, SMALL
from support.cluster import GIB, Cluster, engine
from support.machines import machine

from actors.placement import Choice, DoesNotFit, place
from engines.divisibility import tensor_refusal
from events import catalogue as ev
from events.values import ModelCard, ModelSource, PlacementSettings, Quantization, Rank
from projections.state import ClusterState, Link, Model, Node

WIDE = msgspec.structs.replace(
    SMALL, model_id="Wide-1B", n_heads=12, n_kv_heads=6, ffn_size=1536, n_params=10**9
)
"""A model that 2, 3 or 6 tensor ranks can share."""
CARDS = (SMALL, QUANTIZED, WIDE)
DEVICES = ("cpu:0", "cpu:1", "metal:0")


def node(
    node_id: str,
    devices: dict[str, int],
    available: int = 64 * GIB,
    dtype: str = "float32",
    speed: float = 0.0,
) -> Node:
    return machine(node_id, devices, engine([*devices], dtype=dtype, speed=speed), available=available)


def cluster_of(nodes: list[Node], links: dict[tuple[str, str], float]) -> ClusterState:
    ways = {pair: Link(latency_s=latency, bandwidth=1e8) for pair, latency in links.items()}
    return ClusterState(nodes={each.node_id: each for each in nodes}, links=ways)


def meshed(*nodes: Node, latency: float = 0.001) -> ClusterState:
    """All nodes reach each other."""
    names = [each.node_id for each in nodes]
    return cluster_of(list(nodes), dict.fromkeys(combinations(names, 2), latency))


def placed(
    state: ClusterState, card: ModelCard = SMALL, *, files: tuple[str, ...] = (), **wish: object
) -> Choice:
    degrade = bool(wish.pop("degrade", False))
    settings = PlacementSettings(**{"context": 512, "batch": 1} | wish)  # type: ignore[arg-type]
    source = ModelSource(kind="hub", location=f"org/{card.model_id}")
    model = Model(model_id=card.model_id, card=card, source=source, paths=dict.fromkeys(files, "/models"))
    return place(state, model, settings, seed="seed", attempt=1, degrade=degrade)


def refusal_of(state: ClusterState, card: ModelCard = SMALL, **wish: object) -> str:
    with pytest.raises(DoesNotFit) as refusal:
        placed(state, card, **wish)
    return refusal.value.cause.message


def layers(choice: Choice) -> list[int]:
    return [rank.end_layer - rank.start_layer for rank in choice.placement.ranks]


def nodes_of(choice: Choice) -> list[str]:
    return [rank.node_id for rank in choice.placement.ranks]


# Whatever the cluster


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], dict[tuple[str, str], float]]:
    """Up to six nodes of some devices, two dtypes, several speeds, and some of the ways between them."""
    memory = st.integers(0, 32).map(lambda quarters: quarters * GIB // 4)
    nodes = [
        node(
            f"node-{n}",
            draw(st.dictionaries(st.sampled_from(DEVICES), memory, min_size=1)),
            available=draw(memory),
            dtype=draw(st.sampled_from(["float32", "float32", "float32", "bfloat16"])),
            speed=draw(st.sampled_from([0.0, 0.5, 2.0, 100.0])),
        )
        for n in range(draw(st.integers(1, 6)))
    ]
    pairs = list(combinations([each.node_id for each in nodes], 2))
    linked = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    missing = draw(st.booleans())
    return nodes, {pair: draw(st.floats(1e-4, 0.1)) for pair in pairs if not missing or pair in linked}


WISHES = st.fixed_dictionaries(
    {
        "shard_strategy": st.sampled_from(["auto", "pipeline", "tensor"]),
        "ranks": st.integers(0, 5),
        "context": st.sampled_from([512, 4096]),
        "degrade": st.booleans(),
    }
)


def outcome(
    found: tuple[list[Node], dict[tuple[str, str], float]], card: ModelCard, wish: dict[str, object]
) -> Choice | str:
    try:
        return placed(cluster_of(*found), card, files=("node-1",), **wish)
    except DoesNotFit as refusal:
        return refusal.cause.message


@given(clusters(), st.sampled_from(CARDS), WISHES)
def test_a_group_holds_the_model_within_what_is_free(
    found: tuple[list[Node], dict[tuple[str, str], float]], card: ModelCard, wish: dict[str, object]
) -> None:
    choice = outcome(found, card, wish)
    assume(isinstance(choice, Choice))  # where nearly all are refused, this fails
    assert isinstance(choice, Choice)
    placement, nodes = choice.placement, {each.node_id: each for each in found[0]}
    chosen = {(c.node_id, c.device_id): c for c in choice.candidates if c.verdict == "chosen"}
    assert [rank.rank for rank in placement.ranks] == [*range(len(placement.ranks))]
    assert len(chosen) == len(placement.ranks), "each on a device of its own"
    on_node: Counter[str] = Counter()
    for rank in placement.ranks:
        assert 0 < rank.reserved_bytes <= chosen[rank.node_id, rank.device_id].free_bytes
        on_node[rank.node_id] += rank.reserved_bytes
    assert all(size <= nodes[each].memory_available for each, size in on_node.items())
    assert len({c.dtype for c in chosen.values()}) == 1
    for a, b in combinations(on_node, 2):
        assert (a, b) in found[1] or (b, a) in found[1], f"{a} and {b} don't reach each other"
    _check_shards(placement.ranks, card, placement.strategy)
    wanted = wish["ranks"]
    assert isinstance(wanted, int)
    assert wanted in (0, len(placement.ranks)) or (wish["degrade"] and placement.note)


def _check_shards(ranks: list[Rank], card: ModelCard, strategy: str) -> None:
    if strategy == "tensor" and len(ranks) > 1:
        assert tensor_refusal(card, len(ranks)) is None
        assert all((rank.start_layer, rank.end_layer) == (0, card.n_layers) for rank in ranks)
        return
    ends = [0, *(rank.end_layer for rank in ranks)]
    assert [rank.start_layer for rank in ranks] == ends[:-1]
    assert ends[-1] == card.n_layers
    assert ends == sorted(set(ends)), "every rank has a layer"


@given(clusters(), st.sampled_from(CARDS), WISHES, st.randoms(use_true_random=False))
def test_it_is_deterministic_whatever_the_order_of_nodes(
    found: tuple[list[Node], dict[tuple[str, str], float]],
    card: ModelCard,
    wish: dict[str, object],
    chance: Random,
) -> None:
    nodes, links = found
    shuffled, ways = list(nodes), list(links.items())
    chance.shuffle(shuffled)
    chance.shuffle(ways)
    first, again = outcome(found, card, wish), outcome((shuffled, dict(ways)), card, wish)
    if isinstance(first, Choice) and isinstance(again, Choice):
        assert first.placement == again.placement
    else:
        assert isinstance(first, str)
        assert isinstance(again, str)


@given(clusters(), st.sampled_from(CARDS), WISHES)
def test_a_refusal_is_a_sentence(
    found: tuple[list[Node], dict[tuple[str, str], float]], card: ModelCard, wish: dict[str, object]
) -> None:
    message = outcome(found, card, wish)
    if isinstance(message, Choice):
        return
    assert message.startswith(card.model_id)
    assert message.endswith(".")
    assert ".." not in message
    assert ": ." not in message


# Pipelines


def test_one_device_is_enough_where_one_holds_it() -> None:
    choice = placed(meshed(node("a", {"cpu:0": 8 * GIB}), node("b", {"cpu:0": 8 * GIB})))
    assert layers(choice) == [30]


def test_what_no_device_holds_is_split_over_the_fewest_nodes() -> None:
    small, large = {"cpu:0": GIB}, {"cpu:0": 4 * GIB}
    state = meshed(*(node(f"s{n}", small) for n in range(6)), node("l1", large), node("l2", large))
    choice = placed(state, WIDE, dtype="float32", context=8192, batch=2)
    assert sorted(nodes_of(choice)) == ["l1", "l2"]
    assert choice.placement.strategy == "pipeline"


def test_layers_are_in_proportion_to_what_each_can_hold() -> None:
    choice = placed(meshed(node("a", {"cpu:0": 8 * GIB}), node("b", {"cpu:0": GIB})), WIDE, ranks=2)
    assert nodes_of(choice) == ["a", "b"]
    big, little = layers(choice)
    assert big > 3 * little > 0
    assert choice.placement.ranks[0].reserved_bytes > choice.placement.ranks[1].reserved_bytes


def test_the_devices_of_a_node_share_its_memory() -> None:
    """Two devices of 8 GiB each, of one memory of which 3 GiB are free."""
    divided = node("a", {"cpu:0": 8 * GIB, "cpu:1": 8 * GIB}, available=3 * GIB)
    choice = placed(cluster_of([divided], {}), SMALL, ranks=2)
    assert layers(choice) == [15, 15]
    assert sum(rank.reserved_bytes for rank in choice.placement.ranks) <= 3 * GIB
    tight = node("a", {"cpu:0": 8 * GIB, "cpu:1": 8 * GIB}, available=GIB)
    assert "can't be spread" in refusal_of(cluster_of([tight], {}), SMALL, ranks=2)


def test_devices_that_take_no_rank_claim_no_memory() -> None:
    """Two of a node's four devices are asked for: each may have half of what is free, not a quarter."""
    four = node("a", {f"cpu:{n}": 3 * GIB for n in range(4)}, available=5 * GIB)
    held = placed(cluster_of([four], {}), WIDE, ranks=2, shard_strategy="tensor").placement.ranks
    assert all(5 * GIB / 4 < rank.reserved_bytes <= 5 * GIB / 2 for rank in held)


def test_devices_with_memory_of_their_own_share_none() -> None:
    """What the host has free bounds its CPU and Metal together, and nobody else."""
    own = node("a", {"cuda:0": 8 * GIB, "cuda:1": 8 * GIB}, available=GIB // 4)
    choice = placed(cluster_of([own], {}), SMALL, ranks=2)
    assert layers(choice) == [15, 15]
    mixed = node("a", {"cpu:0": 8 * GIB, "cuda:0": 8 * GIB, "metal:0": 8 * GIB}, available=2 * GIB)
    free = {c.device_id: c.free_bytes for c in placed(cluster_of([mixed], {}), SMALL, ranks=3).candidates}
    assert free == {"cpu:0": 2 * GIB, "cuda:0": 8 * GIB, "metal:0": 2 * GIB}
    held = placed(cluster_of([mixed], {}), WIDE, ranks=3).placement.ranks
    assert sum(rank.reserved_bytes for rank in held if rank.device_id != "cuda:0") <= 2 * GIB
    assert sum(rank.reserved_bytes for rank in held) > 2 * GIB


def test_ranks_of_a_group_compute_in_one_dtype() -> None:
    state = meshed(
        node("a", {"cpu:0": 8 * GIB}),
        node("b", {"cpu:0": 8 * GIB}, dtype="bfloat16"),
        node("c", {"cpu:0": 8 * GIB}),
    )
    assert sorted(nodes_of(placed(state, ranks=2))) == ["a", "c"]
    assert "no group of 3 devices" in refusal_of(state, ranks=3)
    assert len(nodes_of(placed(state, ranks=3, dtype="float32"))) == 3


def test_nodes_that_do_not_reach_each_other_are_no_group() -> None:
    nodes = [node(name, {"cpu:0": 8 * GIB}) for name in "abc"]
    apart = cluster_of(nodes, {("a", "b"): 0.001})
    assert sorted(nodes_of(placed(apart, ranks=2))) == ["a", "b"]
    assert refusal_of(apart, ranks=3) == (
        f"{SMALL.model_id} can't be spread as asked for: no group of 3 devices that reach each other holds "
        "all 30 layers: those with room (3 of 3) hold 90 in all, at 11 MiB a layer."
    )


def test_the_nearest_of_equal_nodes_are_taken() -> None:
    nodes = [node(name, {"cpu:0": 8 * GIB}) for name in "abcd"]
    links = dict.fromkeys(combinations("abcd", 2), 0.05) | {("c", "d"): 0.0002}
    assert sorted(nodes_of(placed(cluster_of(nodes, links), ranks=2))) == ["c", "d"]


def test_nodes_that_have_the_files_are_taken_first() -> None:
    state = meshed(*(node(name, {"cpu:0": 8 * GIB}) for name in "abcd"))
    assert sorted(nodes_of(placed(state, ranks=2, files=("b", "d")))) == ["b", "d"]


def test_more_ranks_than_layers_are_refused() -> None:
    state = meshed(*(node(f"n{n:02}", {"cpu:0": 8 * GIB}) for n in range(31)))
    assert refusal_of(state, ranks=31).endswith("31 ranks were asked for and the model has only 30 layers.")


# Tensors


def test_tensor_ranks_hold_a_share_of_every_layer() -> None:
    state = meshed(*(node(name, {"cpu:0": 8 * GIB}) for name in "abc"))
    choice = placed(state, SMALL, ranks=3, shard_strategy="tensor")
    assert layers(choice) == [30, 30, 30]
    assert choice.placement.strategy == "tensor"
    alone = placed(state, SMALL, dtype="float32").placement.ranks[0].reserved_bytes
    assert all(rank.reserved_bytes < alone for rank in choice.placement.ranks)


def test_heads_that_do_not_divide_are_refused_with_the_numbers() -> None:
    state = meshed(*(node(name, {"cpu:0": 8 * GIB}) for name in "ab"))
    assert refusal_of(state, SMALL, ranks=2, shard_strategy="tensor") == (
        f"{SMALL.model_id} can't be spread as asked for: {SMALL.model_id} has 9 attention heads, which 2 "
        "ranks can't share evenly."
    )


def test_without_a_number_the_smallest_that_divides_and_fits_is_taken() -> None:
    state = meshed(*(node(f"n{n}", {"cpu:0": 3 * GIB}) for n in range(6)))
    assert len(nodes_of(placed(state, WIDE, shard_strategy="tensor"))) == 2
    narrow = meshed(*(node(f"n{n}", {"cpu:0": 2 * GIB}) for n in range(6)))
    assert len(nodes_of(placed(narrow, WIDE, shard_strategy="tensor"))) == 3


def test_quantized_weights_are_split_in_whole_groups() -> None:
    card = msgspec.structs.replace(WIDE, ffn_size=1600, quantization=Quantization(bits=4, group_size=64))
    assert tensor_refusal(card, 3) is not None
    assert "in quantization groups of 64" in (tensor_refusal(card, 2) or "")


# When nodes are lost


def test_fewer_ranks_than_asked_for_will_do_where_nodes_are_lost_and_it_says_so() -> None:
    two = meshed(node("a", {"cpu:0": 8 * GIB}), node("b", {"cpu:0": 8 * GIB}))
    choice = placed(two, ranks=3, degrade=True)
    assert len(choice.placement.ranks) == 2
    assert (
        choice.placement.note
        == "3 ranks were asked for: no group of 3 devices that reach each other holds all 30 "
        "layers: those with room (2 of 2) hold 60 in all, at 11 MiB a layer"
    )
    one = placed(meshed(node("a", {"cpu:0": 8 * GIB})), ranks=3, degrade=True)
    assert len(one.placement.ranks) == 1
    assert one.placement.note == "3 ranks were asked for: 3 ranks need as many devices, and 1 may be used"


def test_a_lost_rank_degrades_the_instance_and_the_log_tells() -> None:
    cluster = Cluster()
    for name in ("node-a", "node-b"):
        cluster.node(name)
        cluster.model(node_id=name)
    cluster.links("node-a", "node-b")
    instance_id = cluster.place(ranks=2)
    assert cluster.node_lost("node-b")
    (event,) = cluster.reconcile(instance_id)
    assert isinstance(event, ev.InstancePlaced)
    assert len(event.placement.ranks) == 1
    assert event.placement.note.startswith("2 ranks were asked for: ")


def test_a_refusal_of_many_devices_stays_readable() -> None:
    """Each number of ranks has a reason of its own, and each retry writes them all into the log."""
    many = meshed(*(node(f"n{n}", {"cpu:0": GIB // 2}) for n in range(100)))
    message = refusal_of(many, WIDE, shard_strategy="tensor")
    assert "2 ranks need" in message
    assert "nor can more ranks, up to 100" in message
    assert len(message) < 2000
