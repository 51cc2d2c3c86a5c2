"""What needs no processes: divisibility, a shard's memory, JACCL's set-up and its fall-back."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from mlx.utils import tree_flatten
from support.served import free_port
from support.tiny import HIDDEN, VOCAB, tiny_model_dir

from engines.cards import card_from_directory
from engines.contract import GroupSpec, LoadSpec, Strategy
from engines.divisibility import tensor_refusal
from engines.link import agree, meet
from engines.mlx import group as groups
from engines.mlx.builder import MlxBuilder
from engines.mlx.group import MlxGroup
from events.values import Cause, ModelCard, Quantization

SMOLLM2 = ModelCard(
    model_id="SmolLM2-135M-Instruct",
    model_type="llama",
    n_layers=30,
    hidden_size=576,
    n_heads=9,
    n_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    max_context=8192,
    dtype="float32",
    n_params=134515008,
    weight_bytes=538090408,
    ffn_size=1536,
)


def test_smollm2_splits_in_three_but_not_in_two() -> None:
    assert tensor_refusal(SMOLLM2, 3) is None
    refusal = tensor_refusal(SMOLLM2, 2)
    assert refusal == "SmolLM2-135M-Instruct has 9 attention heads, which 2 ranks can't share evenly"
    assert "9 attention heads" in str(tensor_refusal(SMOLLM2, 9)) or "3 key-value heads" in str(
        tensor_refusal(SMOLLM2, 9)
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_heads": 8, "n_kv_heads": 2}, "2 key-value heads"),
        ({"n_heads": 8, "n_kv_heads": 4, "ffn_size": 1538}, "1538 dimensions in its feed-forward"),
        ({"n_heads": 8, "n_kv_heads": 4, "hidden_size": 574}, "574 dimensions in its hidden"),
        (
            {
                "n_heads": 8,
                "n_kv_heads": 4,
                "ffn_size": 1600,
                "quantization": Quantization(bits=4, group_size=64),
            },
            "1600 dimensions in its feed-forward layers, which 4 ranks can't share evenly in quantization "
            "groups of 64",
        ),
        ({"n_heads": 8, "n_kv_heads": 4, "ffn_size": 0}, None),
    ],
)
def test_each_shape_is_looked_at(changes: dict[str, Any], said: str | None) -> None:
    refusal = tensor_refusal(msgspec.structs.replace(SMOLLM2, **changes), 4)
    assert refusal is None if said is None else said in str(refusal)


class Mute:
    """A link that nobody listens to."""

    peer = 0

    def send(self, word: object) -> None: ...


class Comm:
    """MLX's group as far as loading uses it."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def _builder(model: Path, strategy: Strategy, rank: int, shards: list[tuple[int, int]]) -> MlxBuilder:
    world = len(shards)
    spec = GroupSpec(group_id="g", rank=rank, hosts=["h:1"] * world, strategy=strategy, timeout_s=1.0)
    comm: Any = Comm(groups.mlx_rank(spec), world)
    links: Any = [Mute()]
    load = LoadSpec(
        card=card_from_directory(model),
        path=str(model),
        dtype="float32",
        context=256,
        batch=4,
        start_layer=shards[rank][0],
        end_layer=shards[rank][1],
        prefill_chunk=64,
    )
    return MlxBuilder(load, MlxGroup(rank, world, spec, links, comm))


def _parameters(builder: MlxBuilder) -> dict[str, mx.array]:
    return dict(tree_flatten(builder._model.parameters()))  # type: ignore[union-attr,arg-type]


def _layer_numbers(names: dict[str, mx.array]) -> set[str]:
    return {name.split("layers.")[1].split(".")[0] for name in names if "layers." in name}


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_pipeline_rank_holds_its_layers_alone(tmp_path: Path, model_type: str) -> None:
    model = tiny_model_dir(tmp_path / "model", layers=6, model_type=model_type)
    shards, seen = [(0, 1), (1, 4), (4, 6)], []
    for rank, (start, end) in enumerate(shards):
        before = mx.get_active_memory()
        builder = _builder(model, "pipeline", rank, shards)
        builder.load(lambda layers, total, seen=seen: seen.append((layers, total)))
        held = _parameters(builder)
        edges = [name for name in held if "embed_tokens" in name or "lm_head" in name]
        assert len(_layer_numbers(held)) == end - start
        assert len(edges) == (2 if rank == 0 else 0)
        taken = mx.get_active_memory() - before
        assert taken == pytest.approx(sum(a.nbytes for a in held.values()), rel=0.05)
        assert seen[-1] == (end - start, end - start)
        del builder, held


def test_a_tensor_rank_holds_its_part_of_every_layer(tmp_path: Path) -> None:
    model = tiny_model_dir(tmp_path / "model", layers=4)
    whole = card_from_directory(model).weight_bytes
    edge = VOCAB * HIDDEN * 4
    for rank in (0, 1):
        builder = _builder(model, "tensor", rank, [(0, 4)] * 2)
        builder.load(lambda layers, total: None)
        # not the active memory: MLX copies only parts of more than 16 KiB out of their tensor
        held = sum(array.nbytes for array in _parameters(builder).values())
        embeddings = 2 * edge if rank == 0 else edge
        assert held == pytest.approx((whole - 2 * edge) / 2 + embeddings, rel=0.01)


class FakeJaccl:
    """RDMA hardware is missing: what MLX's `init` is given, and what it may say."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.asked: list[str] = []
        self.seen: dict[str, object] = {}

    def init(self, strict: bool, backend: str) -> object:
        self.asked.append(backend)
        if backend == "jaccl":
            self.seen = {
                "rank": os.environ["MLX_RANK"],
                "coordinator": os.environ["MLX_JACCL_COORDINATOR"],
                "devices": json.loads(Path(os.environ["MLX_IBV_DEVICES"]).read_text()),
            }
            if self.error:
                raise RuntimeError(self.error)
        return backend


def _spec(rank: int, hosts: list[str], **changes: Any) -> GroupSpec:
    common: dict[str, Any] = {"group_id": "g", "strategy": "tensor", "timeout_s": 10.0}
    return GroupSpec(rank=rank, hosts=hosts, **(common | changes))


def test_jaccl_gets_rank_coordinator_and_device_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeJaccl()
    monkeypatch.setattr(groups.mx.distributed, "init", fake.init)
    hosts, matrix = ["10.0.0.1:7", "10.0.0.2:8"], [[None, "0-to-1"], ["1-to-0", None]]
    for strategy, rank, coordinator, devices in (
        ("tensor", "0", hosts[0], matrix),
        ("pipeline", "1", hosts[1], [[None, "1-to-0"], ["0-to-1", None]]),  # MLX's ranks run backwards
    ):
        spec = _spec(0, hosts, strategy=strategy, backend="jaccl", rdma_devices=matrix)
        assert groups._try_jaccl(spec, []) == ("jaccl", "")
        assert fake.seen == {"rank": rank, "coordinator": coordinator, "devices": devices}


@pytest.mark.parametrize("whys", [("", "", ""), ("no route", "", ""), ("", "", "no route")], ids=str)
def test_ranks_agree_on_one_outcome(whys: tuple[str, ...]) -> None:
    hosts = [f"127.0.0.1:{free_port()}"] * 3
    found: dict[int, str] = {}

    def run(rank: int) -> None:
        links = meet(_spec(rank, hosts), lambda cause: None)
        found[rank] = agree(_spec(rank, hosts), links, whys[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 3
    assert len(set(found.values())) == 1
    assert ("no route" in found[0]) == any(whys)


def test_a_failed_jaccl_falls_back_to_the_ring_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeJaccl("[jaccl] no route to the other rank")
    monkeypatch.setattr(groups.mx.distributed, "init", fake.init)
    monkeypatch.setattr(groups.mx.distributed, "all_sum", lambda x, **_: mx.array(1.0))
    monkeypatch.setattr(groups.rdma, "devices", lambda: ["rdma_en2"])
    spec = _spec(0, [f"127.0.0.1:{free_port()}"], backend="jaccl", rdma_devices=[[None]])
    lost: list[Cause] = []
    made = groups.connect(spec, lost.append)
    assert fake.asked == ["jaccl", "ring"]
    assert "no route" in made.notes[0]
    assert made.notes[0].endswith("slower.")
    assert not {"MLX_RANK", "MLX_IBV_DEVICES", "MLX_HOSTFILE"} & os.environ.keys()


def test_a_tool_that_hangs_finds_no_rdma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "ibv_devices"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(mx.distributed, "is_available", lambda _: True)
    monkeypatch.setattr(groups.rdma, "_LINUX", tmp_path / "none")
    monkeypatch.setattr(groups.rdma, "_LISTING_S", 0.01)
    assert groups.rdma.devices() == []
