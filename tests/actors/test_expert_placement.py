"""Placement with the strategy expert: what each rank holds, which devices may, and what loss leaves."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cards import MIXTURE, SMALL
from support.cluster import GIB, Cluster, engine
from support.machines import machine

from actors.expert_placement import Need, expert_bytes
from actors.placement import Choice, DoesNotFit, place
from actors.refusal import Rejected
from events.experts import EplbSettings
from events.values import EngineReport, ModelCard, ModelSource, PlacementSettings
from projections.state import ClusterState, Link, Model, Node

EPLB = EplbSettings(redundant_experts=4)


def torch(*devices: str, **changes: object) -> EngineReport:
    """A report of the engine that can spread experts."""
    return engine(devices, **{"engine": "torch", "strategies": ["expert"]} | changes)


def node(node_id: str, devices: dict[str, int], *engines: EngineReport, available: int = 64 * GIB) -> Node:
    return machine(node_id, devices, *engines or [torch(*devices)], available=available)


def meshed(*nodes: Node) -> ClusterState:
    """All nodes reach each other."""
    ways = dict.fromkeys(
        combinations([each.node_id for each in nodes], 2), Link(latency_s=0.001, bandwidth=1e8)
    )
    return ClusterState(nodes={each.node_id: each for each in nodes}, links=ways)


def cpus(*names: str, memory: int = 8 * GIB) -> ClusterState:
    return meshed(*(node(name, {"cpu:0": memory}) for name in names))


def wanted(**wish: object) -> PlacementSettings:
    return PlacementSettings(**{"shard_strategy": "expert", "context": 512, "batch": 1} | wish)  # type: ignore[arg-type]


def placed(
    state: ClusterState, card: ModelCard = MIXTURE, *, degrade: bool = False, **wish: object
) -> Choice:
    model = Model(model_id=card.model_id, card=card, source=ModelSource(kind="hub", location="org/m"))
    return place(state, model, wanted(**wish), seed="seed", attempt=1, degrade=degrade)


def refusal_of(state: ClusterState, card: ModelCard = MIXTURE, **wish: object) -> str:
    with pytest.raises(DoesNotFit) as refusal:
        placed(state, card, **wish)
    return refusal.value.cause.message


def share(world: int, **wish: object) -> int:
    return Need(MIXTURE, wanted(**wish), "float32", 512).share(world)


# What a rank holds


def test_every_rank_has_all_layers_and_an_equal_share() -> None:
    placement = placed(cpus("a", "b", "c"), ranks=2, eplb=EPLB, expert_dispatch="all_to_all").placement
    assert [rank.rank for rank in placement.ranks] == [0, 1]
    assert {(rank.start_layer, rank.end_layer) for rank in placement.ranks} == {(0, MIXTURE.n_layers)}
    assert {rank.reserved_bytes for rank in placement.ranks} == {share(2, eplb=EPLB)}
    assert (placement.strategy, placement.engine) == ("expert", "torch")
    assert (placement.expert_dispatch, placement.expert_format, placement.eplb) == (
        "all_to_all",
        "plain",
        EPLB,
    )
    assert placement.note == ""


def test_the_parts_of_a_share_are_those_of_the_model() -> None:
    need = Need(MIXTURE, wanted(eplb=EPLB), "float32", 512)
    expert = 3 * MIXTURE.hidden_size * MIXTURE.ffn_size * 4
    assert expert_bytes(MIXTURE, "float32", "plain") == expert
    assert need.common == MIXTURE.n_params * 4 - 12 * 8 * expert
    assert need.experts(2) == 12 * 6 * expert
    assert need.experts(3) == 12 * 4 * expert
    assert need.staging(2) == 6 * expert
    assert Need(MIXTURE, wanted(), "float32", 512).staging(2) == 0
    rest = need.share(2) - need.common - need.experts(2) - need.staging(2)
    assert rest > 2 * 12 * 4 * 64 * 4 * 512, "KV caches of all layers, the process, activations"


def test_int8_experts_take_a_byte_a_weight_and_a_scale_a_row() -> None:
    weights, rows = 3 * 768 * 3072, 2 * 3072 + 768
    assert expert_bytes(MIXTURE, "float32", "int8") == weights + 4 * rows
    assert expert_bytes(MIXTURE, "bfloat16", "int8") == weights + 4 * rows
    assert share(2, expert_format="int8") < share(2)


def test_int8_experts_need_room_to_be_floats_in() -> None:
    need = Need(MIXTURE, wanted(expert_format="int8"), "float32", 512)
    assert need.scratch(2) == 4 * expert_bytes(MIXTURE, "float32", "plain")
    assert need.share(2) > need.common + need.experts(2) + need.scratch(2)
    assert "108 MiB to compute int8 in" in need.parts(2)
    assert Need(MIXTURE, wanted(), "float32", 512).scratch(2) == 0


@given(
    st.integers(2, 8),
    st.integers(0, 8),
    st.sampled_from(["plain", "int8"]),
    st.sampled_from(["float32", "bfloat16"]),
)
def test_more_ranks_never_need_more_each(world: int, redundant: int, form: str, dtype: str) -> None:
    settings = wanted(expert_format=form, eplb=EplbSettings(redundant_experts=redundant))
    need = Need(MIXTURE, settings, dtype, 512)  # type: ignore[arg-type]
    assert need.share(world + 1) <= need.share(world)
    assert need.share(world) > need.common + need.experts(world)


# Which devices


def test_without_a_number_the_fewest_that_hold_it_and_share_it_evenly_are_taken() -> None:
    assert len(placed(cpus(*"abcdef")).placement.ranks) == 2
    narrow = (share(4) + share(2)) // 2
    assert len(placed(cpus(*"abcdef", memory=narrow)).placement.ranks) == 4
    three = placed(cpus(*"abcdef", memory=share(3, eplb=EPLB)), eplb=EPLB)
    assert len(three.placement.ranks) == 3


def test_one_device_is_never_enough() -> None:
    assert "at least 2 ranks need as many devices, and 1 may be used" in refusal_of(cpus("a"))
    with pytest.raises(Rejected, match="One rank has all experts"):
        placed(cpus("a", "b"), ranks=1)


def test_what_is_short_is_said_with_its_parts() -> None:
    message = refusal_of(cpus(*"abc", memory=GIB), ranks=2, eplb=EPLB)
    assert f"2 ranks need {share(2, eplb=EPLB) / GIB:.2f} GiB each" in message
    assert message.endswith(
        "(258 MiB for all but experts, 1.90 GiB for experts, 162 MiB to stage a layer), and too few devices "
        "that reach each other have that (0 of 3 do)."
    )


def test_an_engine_that_can_not_spread_experts_gets_no_rank() -> None:
    mlx = engine(["cpu:0"])
    both = meshed(
        *(node(name, {"cpu:0": 8 * GIB}, mlx, torch("cpu:0")) for name in "ab"),
        node("c", {"cpu:0": 8 * GIB}, mlx),
    )
    choice = placed(both, ranks=2)
    assert {(c.node_id, c.engine) for c in choice.candidates if c.verdict == "chosen"} == {
        ("a", "torch"),
        ("b", "torch"),
    }
    barred = [c for c in choice.candidates if c.engine == "mlx"]
    assert all("engine mlx can't spread experts" in c.reasons for c in barred)
    alone = meshed(*(node(name, {"cpu:0": 8 * GIB}, mlx) for name in "ab"))
    assert "engine mlx can't spread experts" in refusal_of(alone, ranks=2)


def test_an_engine_that_spreads_nothing_but_experts_gets_no_layers() -> None:
    assert "2 ranks need as many devices, and 0 may be used" in refusal_of(
        cpus("a", "b"), SMALL, shard_strategy="pipeline", ranks=2
    )
    assert placed(cpus("a", "b"), SMALL, shard_strategy="auto").placement.engine == "torch"


def test_nodes_that_do_not_reach_each_other_share_no_experts() -> None:
    apart = ClusterState(nodes=cpus("a", "b").nodes)
    assert "too few devices that reach each other" in refusal_of(apart, ranks=2)


def test_a_communicator_goes_with_the_device() -> None:
    mixed = meshed(
        *(node(f"c{n}", {"cpu:0": 8 * GIB}) for n in range(2)),
        *(node(f"g{n}", {"cuda:0": 8 * GIB}) for n in range(2)),
        *(node(f"m{n}", {"metal:0": 8 * GIB}) for n in range(2)),
    )
    on_cuda = placed(mixed, ranks=2, eplb=msgspec.structs.replace(EPLB, communicator="nccl"))
    assert sorted(rank.node_id for rank in on_cuda.placement.ranks) == ["g0", "g1"]
    reasons = {c.node_id: c.reasons for c in on_cuda.candidates}
    assert "between cpu devices it is gloo" in reasons["c0"][0]
    assert "Experts can't be spread over metal devices" in reasons["m0"][0]
    assert "hccl" in refusal_of(mixed, ranks=2, eplb=msgspec.structs.replace(EPLB, communicator="hccl"))


def test_ranks_of_a_group_are_on_devices_of_one_kind() -> None:
    mixed = meshed(node("c", {"cpu:0": 8 * GIB}), node("g", {"cuda:0": 8 * GIB}))
    assert "there are fewer than two devices" in refusal_of(mixed)
    assert "(1 of 1 do)" in refusal_of(mixed, ranks=2)


def test_auto_is_what_it_was_for_a_mixture() -> None:
    choice = placed(meshed(node("a", {"cpu:0": 8 * GIB}, engine(["cpu:0"]))), shard_strategy="auto")
    assert choice.placement.strategy == "auto"
    assert len(choice.placement.ranks) == 1


# When ranks are lost


def test_fewer_ranks_hold_more_redundant_experts_where_they_must() -> None:
    choice = placed(cpus("a", "b"), ranks=3, degrade=True, eplb=EplbSettings(redundant_experts=1))
    assert len(choice.placement.ranks) == 2
    assert choice.placement.eplb == EplbSettings(redundant_experts=2)
    assert choice.placement.note.endswith(
        "2 redundant experts are held instead of 1, so that 2 ranks share all evenly"
    )


def test_the_last_rank_serves_alone_and_balances_nothing() -> None:
    placement = placed(cpus("a"), ranks=2, degrade=True, eplb=EPLB).placement
    assert (placement.strategy, placement.eplb, len(placement.ranks)) == ("auto", None, 1)
    assert placement.note.endswith("one rank has all experts, and nothing is balanced")
    with pytest.raises(DoesNotFit):
        placed(cpus("a"), ranks=2, degrade=True, expert_format="int8")


def test_nodes_of_unequal_size_are_said_where_the_policy_would_go_by_nodes() -> None:
    grouped = msgspec.structs.replace(MIXTURE, expert_groups=2)
    uneven = meshed(node("a", {"cuda:0": 8 * GIB, "cuda:1": 8 * GIB}), node("b", {"cuda:0": 8 * GIB}))
    greedy = EplbSettings(redundant_experts=1, policy="greedy")
    assert "not node by node" in placed(uneven, grouped, ranks=3, eplb=greedy).placement.note
    assert placed(uneven, ranks=3, eplb=EplbSettings(redundant_experts=1)).placement.note == ""


def test_a_lost_node_leaves_an_instance_with_fewer_ranks() -> None:
    cluster = Cluster()
    for name in ("node-a", "node-b", "node-c"):
        cluster.node(name, engines=[torch("cpu:0")])
        cluster.model(MIXTURE, node_id=name)
    cluster.links("node-a", "node-b", "node-c")
    cluster.links("node-b", "node-c")
    instance_id = cluster.place(
        MIXTURE.model_id, shard_strategy="expert", ranks=3, eplb=EplbSettings(redundant_experts=1)
    )
    assert cluster.node_lost("node-c")
    events = cluster.reconcile(instance_id)
    placement = cluster.state.instances[instance_id].placement
    assert events
    assert placement is not None
    assert len(placement.ranks) == 2
    assert placement.eplb == EplbSettings(redundant_experts=2)
