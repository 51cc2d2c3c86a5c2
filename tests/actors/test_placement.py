"""Placement as a pure function: what it must choose, must respect, and must say."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cards import HUGE, QUANTIZED, SMALL
from support.cluster import GIB, NODE, Cluster, device, engine
from support.machines import machine

from actors.candidates import kv_bytes_per_token, weights_in_memory
from actors.placement import DEFAULT_CONTEXT, Choice, DoesNotFit, best_fit, most_room, place
from actors.refusal import Rejected
from actors.sharding import PROCESS_BYTES
from engines.attention import attention_refusal
from events.values import ModelCard, ModelSource, PlacementSettings
from projections.state import ClusterState, Model, Node

MODEL = Model(model_id=SMALL.model_id, card=SMALL, source=ModelSource(kind="hub", location="org/small"))
SMALLEST = PlacementSettings(context=512, batch=1)
KINDS = ("cpu:0", "metal:0", "cuda:0", "cuda:1")


def node(node_id: str, devices: dict[str, int], *, available: int = 64 * GIB, up: bool = True) -> Node:
    """A node whose one engine computes on all its devices."""
    return machine(node_id, devices, available=available, host="127.0.0.1", up=up)


def state_of(*nodes: Node) -> ClusterState:
    return ClusterState(nodes={each.node_id: each for each in nodes})


def chosen(state: ClusterState, model: Model = MODEL, **settings: object) -> Choice:
    wanted = PlacementSettings(**{"context": 512, "batch": 1} | settings)  # type: ignore[arg-type]
    return place(state, model, wanted, seed="seed", attempt=1)


def where(choice: Choice) -> tuple[str, str]:
    (rank,) = choice.placement.ranks
    return rank.node_id, rank.device_id


def with_two_engines(model: Model = MODEL, **settings: object) -> str:
    mlx = engine(["cpu:0"], speed=300.0)
    torch = engine(["cpu:0"], engine="torch", dtype="bfloat16", speed=800.0)
    unmeasured = engine(["cpu:0"], engine="new")
    both = msgspec.structs.replace(node(NODE, {"cpu:0": 16 * GIB}), engines=[mlx, torch, unmeasured])
    return chosen(state_of(both), model, **settings).placement.engine


def test_of_the_engines_on_a_device_the_fastest_is_taken() -> None:
    assert with_two_engines() == "torch"
    assert with_two_engines(engine="mlx") == "mlx"
    assert with_two_engines(dtype="float32") == "torch"


def test_an_engine_that_reads_no_quantized_weights_gets_none() -> None:
    source = ModelSource(kind="hub", location="org/quantized")
    assert with_two_engines(Model(model_id=QUANTIZED.model_id, card=QUANTIZED, source=source)) == "mlx"


@pytest.mark.parametrize(
    ("card", "wish"),
    [
        (msgspec.structs.replace(SMALL, other_layers=["linear_attention"]), {}),
        (msgspec.structs.replace(SMALL, window=256), {"context": 257}),
    ],
)
def test_an_engine_that_keeps_all_gets_no_model_that_attends_otherwise(
    card: ModelCard, wish: dict[str, object]
) -> None:
    """Refused before anything loads, by the sentence that a load would be refused with."""
    known = msgspec.structs.replace(MODEL, card=card)
    assert with_two_engines(known, **wish) == "mlx"
    with pytest.raises(DoesNotFit) as refusal:
        with_two_engines(known, engine="torch", **wish)
    said = attention_refusal(card, 257)
    assert said is not None
    assert said in refusal.value.cause.message
    assert [said] == next(c.reasons for c in refusal.value.candidates if c.engine == "torch")


def test_a_context_within_the_window_is_placed() -> None:
    known = msgspec.structs.replace(MODEL, card=msgspec.structs.replace(SMALL, window=256))
    assert with_two_engines(known, context=256) == "torch"


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    memory = st.integers(0, 4 * GIB)
    return [
        node(
            f"node-{n}",
            draw(st.dictionaries(st.sampled_from(KINDS), memory, min_size=1)),
            available=draw(memory),
            up=draw(st.booleans()),
        )
        for n in range(draw(st.integers(0, 5)))
    ]


def outcome(nodes: list[Node], files: set[str]) -> Choice | DoesNotFit:
    model = msgspec.structs.replace(MODEL, paths=dict.fromkeys(sorted(files), "/models/small"))
    try:
        return place(state_of(*nodes), model, SMALLEST, seed="seed", attempt=1)
    except DoesNotFit as refusal:
        return refusal


FILES = st.sets(st.sampled_from([f"node-{n}" for n in range(5)]))


class TestProperties:
    @given(clusters(), FILES)
    def test_every_device_of_every_node_that_is_up_is_a_candidate(
        self, nodes: list[Node], files: set[str]
    ) -> None:
        found = outcome(nodes, files)
        assert [(c.node_id, c.device_id) for c in found.candidates] == [
            (each.node_id, one.device_id) for each in nodes if each.up for one in each.devices
        ]
        for candidate in found.candidates:
            needed = candidate.weights_bytes + candidate.kv_bytes + candidate.overhead_bytes
            assert candidate.needed_bytes == needed > 0
            assert (candidate.verdict == "refused") == bool(candidate.reasons)
            assert (candidate.needed_bytes > candidate.free_bytes) == bool(candidate.reasons)

    @given(clusters(), FILES)
    def test_the_chosen_one_fits_and_nothing_is_refused_where_one_does(
        self, nodes: list[Node], files: set[str]
    ) -> None:
        found = outcome(nodes, files)
        picked = [candidate for candidate in found.candidates if candidate.verdict == "chosen"]
        if isinstance(found, DoesNotFit):
            assert not picked
            assert all(candidate.reasons for candidate in found.candidates)
            return
        (best,) = picked
        assert where(found) == (best.node_id, best.device_id)
        assert found.placement.ranks[0].reserved_bytes == best.needed_bytes <= best.free_bytes

    @given(clusters(), FILES, st.randoms(use_true_random=False))
    def test_it_is_deterministic_whatever_the_order_of_nodes(
        self, nodes: list[Node], files: set[str], chance: Random
    ) -> None:
        found = outcome(nodes, files)
        shuffled = list(nodes)
        chance.shuffle(shuffled)
        again = outcome(shuffled, files)
        assert type(again) is type(found)
        if isinstance(found, Choice) and isinstance(again, Choice):
            assert again.placement == found.placement
        by_place = {(c.node_id, c.device_id): c for c in found.candidates}
        assert by_place == {(c.node_id, c.device_id): c for c in again.candidates}

    @given(clusters(), FILES)
    def test_files_then_accelerator_then_room(self, nodes: list[Node], files: set[str]) -> None:
        found = outcome(nodes, files)
        if isinstance(found, DoesNotFit):
            return
        fitting = [c for c in found.candidates if c.verdict != "refused"]
        (best,) = [c for c in fitting if c.verdict == "chosen"]
        assert best.has_files == any(c.has_files for c in fitting)
        rivals = [c for c in fitting if c.has_files == best.has_files]
        fast = [c for c in rivals if not c.device_id.startswith("cpu")]
        assert not fast or best in fast
        rivals = fast or rivals
        assert best.free_bytes == max(c.free_bytes for c in rivals)


class TestMemory:
    def test_the_numbers(self) -> None:
        (candidate,) = chosen(state_of(node("a", {"cpu:0": 64 * GIB})), context=1000, batch=3).candidates
        assert candidate.weights_bytes == SMALL.n_params * 4
        assert candidate.kv_bytes == 2 * 30 * 3 * 64 * 4 * 1000 * 3
        assert candidate.overhead_bytes == PROCESS_BYTES + candidate.weights_bytes // 20

    @pytest.mark.parametrize(
        ("card", "dtype", "size"),
        [
            (SMALL, "float32", SMALL.n_params * 4),
            (SMALL, "bfloat16", SMALL.n_params * 2),
            (QUANTIZED, "float32", QUANTIZED.weight_bytes),
        ],
    )
    def test_quantized_weights_stay_as_they_are(self, card: ModelCard, dtype: str, size: int) -> None:
        assert weights_in_memory(card, dtype) == size  # type: ignore[arg-type]

    def test_dtype_context_and_batch_are_honoured(self) -> None:
        state = state_of(node("a", {"cpu:0": 64 * GIB}))
        assert chosen(state).placement.dtype == "float32"
        wanted = chosen(state, dtype="bfloat16", context=2048, batch=4)
        assert (wanted.placement.dtype, wanted.placement.context, wanted.placement.batch) == (
            "bfloat16",
            2048,
            4,
        )
        assert wanted.candidates[0].kv_bytes == kv_bytes_per_token(SMALL, "bfloat16") * 2048 * 4

    @pytest.mark.parametrize(("model", "context"), [(SMALL, 8192), (QUANTIZED, DEFAULT_CONTEXT)])
    def test_without_a_wish_the_context_is_the_models_own_up_to_a_limit(
        self, model: ModelCard, context: int
    ) -> None:
        known = msgspec.structs.replace(MODEL, card=model)
        assert chosen(state_of(node("a", {"cpu:0": 64 * GIB})), known, context=0).placement.context == context

    def test_what_other_instances_reserve_is_not_free(self) -> None:
        cluster = Cluster()
        cluster.node()
        cluster.model()
        free = []
        for _ in range(3):
            instance_id = cluster.place()
            placed = cluster.history[-1]
            (candidate,) = placed.candidates  # type: ignore[attr-defined]
            free.append(candidate.free_bytes)
            cluster.ready(instance_id)
        needed = candidate.needed_bytes
        assert free == [16 * GIB, 16 * GIB - needed, 16 * GIB - 2 * needed]

    def test_what_still_loads_is_taken_off_the_nodes_reading_on_all_its_devices(self) -> None:
        cluster = Cluster()
        cluster.node(
            devices=[device("cpu:0"), device("metal:0")],
            engines=[engine(["cpu:0", "metal:0"])],
            memory_available=4 * GIB,
        )
        cluster.model()
        instance_id = cluster.place(device_id="metal:0")
        model = cluster.state.models[SMALL.model_id]
        loading = chosen(cluster.state, model, device_id="cpu:0")
        assert loading.candidates[0].free_bytes == 4 * GIB - loading.candidates[0].needed_bytes
        cluster.ready(instance_id)
        loaded = chosen(cluster.state, model, device_id="cpu:0")
        assert loaded.candidates[0].free_bytes == 4 * GIB, "now the reading has it"

    @pytest.mark.parametrize("device_id", ["cuda:0", "npu:0"])
    def test_memory_of_its_own_is_bounded_by_its_own_reading(self, device_id: str) -> None:
        """The host's is another memory: one that is full keeps nothing from an accelerator."""
        state = state_of(node("a", {"cpu:0": 64 * GIB, device_id: 40 * GIB}, available=GIB // 4))
        cpu, accelerator = chosen(state).candidates
        assert (cpu.free_bytes, accelerator.free_bytes) == (GIB // 4, 40 * GIB)
        assert (cpu.verdict, accelerator.verdict) == ("refused", "chosen")
        read = msgspec.structs.replace(device(device_id, 40 * GIB), memory_free=3 * GIB)
        state.nodes["a"].devices[1] = read
        assert chosen(state).candidates[1].free_bytes == 3 * GIB

    def test_metal_computes_in_the_nodes_memory(self) -> None:
        state = state_of(node("a", {"metal:0": 64 * GIB}, available=2 * GIB))
        assert chosen(state).candidates[0].free_bytes == 2 * GIB

    def test_what_loads_on_its_own_memory_is_taken_off_that_alone(self) -> None:
        cluster = Cluster()
        own = msgspec.structs.replace(device("cuda:0", 8 * GIB), memory_free=6 * GIB)
        cluster.node(
            devices=[device("cpu:0"), own],
            engines=[engine(["cpu:0", "cuda:0"])],
            memory_available=4 * GIB,
        )
        cluster.model()
        instance_id = cluster.place(device_id="cuda:0")
        model = cluster.state.models[SMALL.model_id]
        for ready in (False, True):
            if ready:
                cluster.ready(instance_id)
            cpu, accelerator = chosen(cluster.state, model).candidates
            assert cpu.free_bytes == 4 * GIB
            assert accelerator.free_bytes == 6 * GIB - accelerator.needed_bytes, "the reading is from before"

    def test_a_void_placement_gives_its_memory_back(self) -> None:
        cluster = Cluster()
        instance_id = cluster.served()
        cluster.delete(instance_id)
        assert chosen(cluster.state).candidates[0].free_bytes == 16 * GIB


class TestWishes:
    @pytest.mark.parametrize(
        ("wish", "place"),
        [({"node_id": "b"}, ("b", "metal:0")), ({"device_id": "cpu:0"}, ("a", "cpu:0"))],
    )
    def test_a_named_place_is_taken(self, wish: dict[str, str], place: tuple[str, str]) -> None:
        devices = {"cpu:0": 64 * GIB, "metal:0": 64 * GIB}
        assert where(chosen(state_of(node("a", devices), node("b", devices)), **wish)) == place

    def test_an_engine_that_failed_its_test_is_a_candidate_with_the_reason(self) -> None:
        ill = node("a", {"cpu:0": 64 * GIB})
        ill.engines[0] = engine([], ok=False, detail="no BLAS")
        with pytest.raises(DoesNotFit, match="engine mlx failed its self-test: no BLAS"):
            chosen(state_of(ill))

    def test_a_device_that_no_engine_uses_is_a_candidate_too(self) -> None:
        mixed = node("a", {"cpu:0": 64 * GIB, "metal:0": 64 * GIB})
        mixed.engines[0] = engine(["metal:0"])
        refused, taken = chosen(state_of(mixed)).candidates
        assert (refused.device_id, refused.verdict) == ("cpu:0", "refused")
        assert refused.reasons == ["no engine of this node computes on it"]
        assert taken.verdict == "chosen"

    def test_ids_come_from_the_seed(self) -> None:
        state = state_of(node("a", {"cpu:0": 64 * GIB}))
        assert chosen(state).placement == chosen(state).placement
        other = place(state, MODEL, SMALLEST, seed="another", attempt=1)
        assert other.placement.ranks[0].runner_id != chosen(state).placement.ranks[0].runner_id

    def test_best_fit_keeps_the_big_one_free(self) -> None:
        state = state_of(node("big", {"cpu:0": 64 * GIB}), node("small", {"cpu:0": 2 * GIB}))
        assert where(place(state, MODEL, SMALLEST, seed="s", attempt=1, prefer=best_fit))[0] == "small"
        assert where(place(state, MODEL, SMALLEST, seed="s", attempt=1, prefer=most_room))[0] == "big"


class TestRefusals:
    def test_the_sentence_has_the_numbers_and_what_to_do(self) -> None:
        state = state_of(node(NODE, {"cpu:0": 64 * GIB}), node("full", {"cpu:0": GIB}))
        huge = msgspec.structs.replace(MODEL, model_id=HUGE.model_id, card=HUGE)
        with pytest.raises(DoesNotFit) as refusal:
            chosen(state, huge, context=0, batch=8)
        message = refusal.value.cause.message
        assert message.startswith(f"Huge-405B fits nowhere. cpu:0 of {NODE} comes nearest: needs 1")
        assert "as float32, KV cache" in message
        assert "for 8 x 8192 tokens" in message
        assert "64.00 GiB are free" in message
        assert "free. Ask for a smaller context (now 8192) or batch (now 8), or free memory. Over" in message
        assert message.endswith(
            "Over several devices: no group of two or more devices that reach each other holds all "
            "126 layers: those with room (1 of 2) hold 3 in all, at 12.97 GiB a layer."
        )
        assert list(refusal.value.cause.detail) == [f"{NODE}/cpu:0/mlx", "full/cpu:0/mlx"]

    def test_where_memory_is_not_what_lacks_it_is_not_asked_for(self) -> None:
        with pytest.raises(DoesNotFit) as refusal:
            chosen(state_of(node("a", {"cpu:0": 64 * GIB})), engine="torch")
        assert refusal.value.cause.message == (
            f"{SMALL.model_id} fits nowhere. cpu:0 of a comes nearest: engine torch was asked for."
        )

    def test_one_that_lacks_only_memory_is_nearer_than_one_without_an_engine(self) -> None:
        ill = node("ill", {"cpu:0": 64 * GIB})
        ill.engines[0] = engine([], ok=False, detail="no BLAS")
        with pytest.raises(Rejected, match="cpu:0 of full comes nearest"):
            chosen(state_of(ill, node("full", {"cpu:0": GIB // 2})))
