"""More nodes where they are faster: what is predicted, when that decides, and that it is said."""

from __future__ import annotations

import re
from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cards import MIXTURE, SMALL
from support.cluster import GIB, engine
from support.machines import machine

from actors.placement import Choice, place
from actors.sharding import Group, Need, Seat, Shard
from actors.step_time import DECODE_SHARE, Load, load_of, predicted
from engines import speed as work
from events.values import Candidate, ModelCard, ModelSource, PlacementSettings
from projections.state import ClusterState, Link, Model, Node

BIG = msgspec.structs.replace(
    SMALL,
    model_id="Big-3B",
    n_layers=32,
    hidden_size=3072,
    n_heads=24,
    n_kv_heads=12,
    ffn_size=9216,
    n_params=3 * 10**9,
)
"""A model that 2, 3, 4 or 6 tensor ranks can share, 12 GB in float32."""
LAN = Link(latency_s=2e-4, bandwidth=1e9)
SLOW = Link(latency_s=0.5, bandwidth=1e6)


def node(
    node_id: str,
    *devices: str,
    speed: float = 100.0,
    available: int = 60 * GIB,
    host: str = "",
    **changes: object,
) -> Node:
    """A machine of its own, but for those with the same host."""
    ids = devices or ("cpu:0",)
    return machine(
        node_id,
        dict.fromkeys(ids, 64 * GIB),
        engine(ids, speed=speed, **changes),
        available=available,
        host=host,
    )


def machines(n: int, **changes: object) -> list[Node]:
    return [node(f"n{number}", **changes) for number in range(n)]  # type: ignore[arg-type]


def placed(
    nodes: list[Node], card: ModelCard = BIG, link: Link = LAN, files: tuple[str, ...] = (), **wish: object
) -> Choice:
    names = [each.node_id for each in nodes]
    state = ClusterState(
        nodes={each.node_id: each for each in nodes}, links=dict.fromkeys(combinations(names, 2), link)
    )
    source = ModelSource(kind="hub", location="org/m")
    model = Model(model_id=card.model_id, card=card, source=source, paths=dict.fromkeys(files, "/models"))
    settings = PlacementSettings(**{"context": 512, "batch": 1} | wish)  # type: ignore[arg-type]
    return place(state, model, settings, seed="seed", attempt=1)


def shape(choice: Choice) -> tuple[str, list[str]]:
    placement = choice.placement
    return placement.strategy, sorted(rank.node_id for rank in placement.ranks)


# The prediction


def seat(node_id: str, device_id: str = "cpu:0", speed: float = 10.0, host: str = "") -> Seat:
    candidate = Candidate(
        node_id=node_id,
        device_id=device_id,
        engine="mlx",
        dtype="float32",
        weights_bytes=0,
        kv_bytes=0,
        overhead_bytes=0,
        needed_bytes=0,
        free_bytes=0,
        has_files=True,
        verdict="fits",
        reasons=[],
    )
    return Seat(candidate, device_id.partition(":")[0], 0, ("pipeline", "tensor"), speed, host or node_id)


def group(strategy: str, *seats: Seat, layers: int = 4) -> Group:
    """A pipeline has as many layers on each."""
    if strategy != "pipeline":
        return Group(strategy, [Shard(each, 0, layers, 0) for each in seats])  # type: ignore[arg-type]
    each = layers // len(seats)
    return Group("pipeline", [Shard(s, n * each, (n + 1) * each, 0) for n, s in enumerate(seats)])


def lan(*_: str) -> Link:
    return Link(latency_s=0.002, bandwidth=1e6)


LOAD = Load(layers=4, layer=2.0, output=3.0, state_bytes=3000)
UNIT = DECODE_SHARE / 10.0 / work.LAYERS
"""Seconds that a layer of the work takes at speed 10."""


def test_one_device_reads_all_layers() -> None:
    assert predicted(group("auto", seat("a")), LOAD, lan) == pytest.approx((4 * 2 + 3) * UNIT)


def test_a_pipeline_computes_in_turn_and_hands_on() -> None:
    slow = seat("b", speed=5.0)
    hop = 0.001 + 0.003
    found = predicted(group("pipeline", seat("a"), slow), LOAD, lan)
    assert found == pytest.approx((2 * 2 + 3) * UNIT + 2 * 2 * 2 * UNIT + hop + hop)


def test_tensor_ranks_share_layers_and_reduce_twice_in_each() -> None:
    hop = 0.001 + 0.001
    found = predicted(group("tensor", seat("a"), seat("b"), seat("c", speed=5.0)), LOAD, lan)
    assert found == pytest.approx(4 * 2 * 2 * UNIT / 3 + 3 * UNIT + (2 * 4 + 1) * 2 * 2 * hop)


def test_the_units_are_layers_of_the_work() -> None:
    weights = 10 * work.LAYER_PARAMS * 4 * SMALL.n_layers + 600
    load = load_of(Need(SMALL, weights, 600, 0), "float32")
    assert load == Load(30, 10.0, 300 / work.LAYER_PARAMS / 4, SMALL.hidden_size * 4)


@pytest.mark.parametrize("strategy", ["pipeline", "tensor"])
def test_what_was_not_measured_is_not_predicted(strategy: str) -> None:
    both = group(strategy, seat("a"), seat("b"))
    assert predicted(both, LOAD, lan) is not None
    assert predicted(both, LOAD, lambda *_: None) is None
    assert predicted(both, LOAD, lambda *_: Link(latency_s=0.001, bandwidth=0.0)) is None
    assert predicted(group(strategy, seat("a"), seat("b", speed=0.0)), LOAD, lan) is None


@given(
    st.lists(st.floats(0.1, 1e5), min_size=2, max_size=6),
    st.floats(0.01, 1e4),
    st.sampled_from(["node", "host", "accelerators"]),
    st.sampled_from(["tensor", "pipeline"]),
)
def test_ranks_of_one_machine_and_accelerators_are_no_faster_together(
    speeds: list[float], layer: float, together: str, strategy: str
) -> None:
    """A machine's CPUs were each measured with all its cores; an accelerator's time is its kernels' start."""
    seats = {
        "node": [seat("a", f"cpu:{n}", each) for n, each in enumerate(speeds)],
        "host": [seat(f"n{n}", "cpu:0", each, host="10.0.0.1") for n, each in enumerate(speeds)],
        "accelerators": [seat(f"n{n}", "metal:0", each) for n, each in enumerate(speeds)],
    }[together]
    load = Load(layers=len(seats), layer=layer, output=0.0, state_bytes=3000)
    alone = [predicted(group("auto", each, layers=len(seats)), load, lan) for each in seats]
    shared = predicted(group(strategy, *seats, layers=len(seats)), load, lan)
    assert shared is not None
    assert shared >= min(each for each in alone if each is not None) * (1 - 1e-9)


# What it decides


def test_a_clearly_faster_tensor_group_is_taken_and_the_note_has_the_numbers() -> None:
    choice = placed(machines(2))
    assert shape(choice) == ("tensor", ["n0", "n1"])
    note = choice.placement.note
    assert note.startswith("a step of decode is predicted to take ")
    assert " ms on 2 tensor ranks of 2 nodes, " in note
    assert note.endswith(" ms on one device; what has more nodes is taken where it is 1.2 times as fast")
    assert all(c.reasons for c in choice.candidates if c.verdict == "chosen")


def test_over_slow_links_one_device_stays_and_the_note_has_the_numbers() -> None:
    choice = placed(machines(2), link=SLOW)
    assert len(choice.placement.ranks) == 1
    assert " ms on one device, " in choice.placement.note
    assert " ms on 2 tensor ranks of 2 nodes; " in choice.placement.note


NOT_WEIGHED: dict[str, tuple[list[Node], dict[str, object]]] = {
    "speeds not measured": (machines(2, speed=0.0), {}),
    "links not measured": (machines(2), {"link": Link(latency_s=1e-4, bandwidth=0.0)}),
    "one rank was asked for": (machines(2), {"ranks": 1}),
    "a node was asked for": (machines(2), {"node_id": "n0"}),
    "a device was asked for": (machines(2), {"device_id": "cpu:0"}),
    "pipelines were asked for": (machines(2), {"shard_strategy": "pipeline"}),
    "an engine that has no tensor ranks": (machines(2, strategies=["expert"]), {}),
    "nodes of one machine": (machines(2, host="127.0.0.1"), {}),
    "devices of one node": ([node("n0", "cpu:0", "cpu:1", "cpu:2")], {}),
    "heads that do not divide": (
        machines(2),
        {"card": msgspec.structs.replace(BIG, n_heads=9, n_kv_heads=3)},
    ),
    "a type that can not be split": (machines(2), {"card": msgspec.structs.replace(BIG, model_type="phi3")}),
    "a mixture": (machines(2), {"card": msgspec.structs.replace(MIXTURE, model_type="qwen3")}),
    "files that are on one node only": (machines(2), {"files": ("n1",)}),
    "accelerators": ([node("n0", "metal:0"), node("n1", "metal:0")], {}),
}


@pytest.mark.parametrize(("nodes", "wish"), NOT_WEIGHED.values(), ids=NOT_WEIGHED)
def test_nothing_is_weighed_and_one_device_stays(nodes: list[Node], wish: dict[str, object]) -> None:
    choice = placed(nodes, **wish)  # type: ignore[arg-type]
    assert len(choice.placement.ranks) == 1
    assert choice.placement.note == ""


def test_files_on_all_nodes_are_no_hindrance() -> None:
    assert shape(placed(machines(3), files=("n0", "n2"))) == ("tensor", ["n0", "n2"])


def test_the_number_of_ranks_is_one_that_divides() -> None:
    odd = msgspec.structs.replace(BIG, n_heads=9, n_kv_heads=3)
    assert shape(placed(machines(3), odd)) == ("tensor", ["n0", "n1", "n2"])


def test_each_more_node_has_to_earn_its_place() -> None:
    """Of 2, 3, 4 and 6 ranks, the last that is 1.2 times as fast as all before."""
    ranks = [
        len(placed(machines(6), link=Link(latency_s=latency, bandwidth=1e9)).placement.ranks)
        for latency in (1e-5, 2e-3, 4e-3, 0.1)
    ]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] > ranks[1] > ranks[-1] == 1


def test_a_little_faster_is_not_enough() -> None:
    """From clearly faster to slower, in small steps of the links' latency."""
    in_between = 0
    for step in range(200):
        link = Link(latency_s=step * 2e-4, bandwidth=1e9)
        placement = placed(machines(2), link=link).placement
        times = {number: float(ms) for ms, number in re.findall(r"([\d.]+) ms on (one|2)", placement.note)}
        gain = times["one"] / times["2"]
        in_between += 1.02 < gain < 1.18
        if not 1.18 <= gain <= 1.22:  # the note's numbers are rounded
            assert (len(placement.ranks) == 2) == (gain > 1.2)
    assert in_between


def test_what_the_fastest_device_does_alone_needs_no_group() -> None:
    """The preference is for room: that another device is faster is no reason for a group."""
    nodes = [node("big", speed=10.0), node("fast", speed=1000.0, available=30 * GIB)]
    choice = placed([*nodes, node("near", speed=12.0, available=20 * GIB)])
    assert shape(choice) == ("auto", ["big"])
    assert " ms on the fastest device that holds it; " in choice.placement.note


def test_a_slow_rank_is_left_out() -> None:
    assert shape(placed([*machines(2), node("slow", speed=1.0)])) == ("tensor", ["n0", "n1"])


def test_more_nodes_that_are_faster_are_taken_for_a_pipeline() -> None:
    """Two large nodes hold the model; three small ones do too, and compute it ten times as fast."""
    large = [node(f"l{n}", speed=10.0, available=10 * GIB) for n in range(2)]
    small = [node(f"s{n}", speed=100.0, available=6 * GIB) for n in range(3)]
    choice = placed([*large, *small], shard_strategy="pipeline")
    assert shape(choice) == ("pipeline", ["s0", "s1", "s2"])
    assert " ms on 3 pipeline ranks of 3 nodes, " in choice.placement.note
    assert " ms on 2 pipeline ranks of 2 nodes; " in choice.placement.note
    alike = [msgspec.structs.replace(each, engines=[engine(speed=10.0)]) for each in small]
    assert shape(placed([*large, *alike], shard_strategy="pipeline")) == ("pipeline", ["l0", "l1"])


def test_a_model_that_no_device_holds_is_shared_by_layer_where_that_is_faster() -> None:
    nodes = machines(2, available=9 * GIB)
    assert shape(placed(nodes)) == ("tensor", ["n0", "n1"])
    assert shape(placed(nodes, link=SLOW)) == ("pipeline", ["n0", "n1"])
    assert shape(placed(nodes, shard_strategy="pipeline")) == ("pipeline", ["n0", "n1"])
