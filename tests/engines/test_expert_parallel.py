"""What a rank takes out of a model and reads in its place, and what it refuses before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from support.expert_ranks import CPU, Rank, forward, load  # noqa: E402
from support.tiny_moe import EXPERTS, MOE_LAYERS, config, some_tokens, tiny_moe_dir  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from engines.contract import ExpertShard, LoadError  # noqa: E402
from engines.torch.experts.parallel import ExpertParallel  # noqa: E402
from engines.torch.loading import Checkpoint  # noqa: E402
from events.experts import EplbSettings  # noqa: E402

PLAIN = ExpertShard(dispatch="shared", format="plain", slots=EXPERTS)


def parallel(shard: ExpertShard, world: int = 1, rank: int = 0) -> ExpertParallel:
    return ExpertParallel(shard, rank=rank, world=world, group=None, dtype=torch.float32, device=CPU)


def prepared(shard: ExpertShard, model_config: Any, world: int = 1) -> ExpertParallel:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    made = parallel(shard, world)
    made.prepare(model)
    return made


def refusal(shard: ExpertShard, model_config: Any = None, world: int = 1) -> tuple[str, str]:
    with pytest.raises(LoadError) as error:
        prepared(shard, model_config or config("mixtral"), world)
    return error.value.cause.code, error.value.cause.message


def shard(maps: list[list[int]], slots: int = 8, *, eplb: bool = True) -> ExpertShard:
    return ExpertShard(
        dispatch="shared", format="plain", slots=slots, maps=maps, eplb=EplbSettings() if eplb else None
    )


GOOD = [0, 1, 2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(
    ("asked", "world", "code", "words"),
    [
        (
            shard([], 8),
            3,
            "experts_not_divisible",
            "8 physical experts can't be divided evenly among 3 ranks",
        ),
        (shard([GOOD] * 2), 1, "experts_misplaced", "maps of 2 MoE layers; the model has 3"),
        (shard([GOOD, GOOD, GOOD[:6]]), 1, "experts_misplaced", "6 slots"),
        (shard([GOOD, GOOD, [0, 1, 2, 3, 4, 4, 0, 1]]), 1, "experts_misplaced", "Expert 5 has no slot"),
        (shard([GOOD, GOOD, [0, 0, 2, 3, 4, 5, 1, 1]]), 2, "experts_misplaced", "expert 0 twice"),
        (shard([[1, 0, 2, 3, 4, 5]] * 3, 6, eplb=False), 1, "experts_misplaced", "only with EPLB"),
        (shard([], 8, eplb=False), 1, "experts_misplaced", "only with EPLB"),
        (shard([], 4), 1, "experts_misplaced", "Expert 4 has no slot"),
    ],
)
def test_placements_that_do_not_fit_are_refused(
    asked: ExpertShard, world: int, code: str, words: str
) -> None:
    found, message = refusal(asked, world=world)
    assert found == code
    assert words in message


def test_models_whose_experts_can_not_be_spread_are_refused() -> None:
    dense = AutoConfig.for_model(
        "llama", hidden_size=32, num_hidden_layers=1, intermediate_size=48, vocab_size=9
    )
    assert refusal(PLAIN, dense)[0] == "experts_unsupported"
    without = config("qwen3_moe")
    without.mlp_only_layers = [0, 1, 2]
    assert refusal(PLAIN, without)[0] == "no_experts"
    assert refusal(ExpertShard(dispatch="shared", format="int4", slots=6))[0] == "expert_format_unsupported"  # type: ignore[arg-type]


@pytest.mark.parametrize(("change", "words"), [(None, "lack"), (torch.zeros(1, 32), "in another shape")])
def test_checkpoints_that_do_not_match_are_refused(tmp_path: Path, change: Any, words: str) -> None:
    path = tiny_moe_dir(tmp_path / "moe", "mixtral")
    name = "model.layers.2.block_sparse_moe.experts.5.w3.weight"
    tensors = load_file(path / "model.safetensors")
    del tensors[name]
    save_file(
        tensors | ({} if change is None else {name: change}), path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(LoadError) as error:
        load(Rank(0, 1, None), path, PLAIN)
    assert error.value.cause.code == "weights_mismatch"
    assert name in error.value.cause.message
    assert words in error.value.cause.message


def test_a_rank_reads_the_experts_of_its_slots_and_no_others(tiny_moes: dict[str, Path]) -> None:
    for family, path in tiny_moes.items():
        rank = parallel(shard([[5, 3, 1, 0, 2, 4, 3, 0]] * MOE_LAYERS[family]), world=2, rank=1)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
        prefixes = rank.prepare(model)
        assert not [name for name in model.state_dict() if ".experts." in name]
        seen = Names(path)
        done: list[tuple[int, int]] = []
        with seen:
            rank.read(seen, lambda n, of, done=done: done.append((n, of)))
            whole = {name for name in seen.names if ".experts." in name}
        assert done == [(n + 1, MOE_LAYERS[family]) for n in range(MOE_LAYERS[family])]
        assert {name for name in whole if name.startswith(tuple(prefixes))} == whole
        experts = {int(name.split(".experts.")[1].split(".")[0]) for name in seen.read}
        assert experts == {2, 4, 3, 0}


class Names(Checkpoint):
    """A checkpoint that knows what was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read: set[str] = set()

    def slice(self, name: str) -> Any:
        self.read.add(name)
        return super().slice(name)


def test_a_reloaded_slot_has_the_bytes_of_a_first_load(tiny_moes: dict[str, Path]) -> None:
    path = tiny_moes["olmoe"]
    for format in ("plain", "int8"):
        asked = ExpertShard(dispatch="shared", format=format, slots=EXPERTS)
        _, one = load(Rank(0, 1, None), path, asked)
        weights = one.layers[1].weights
        before = {name: view.clone() for name, view in weights.views(4).items()}
        with Checkpoint(path) as checkpoint:
            one.reload(one.layers[1], 4, 2, checkpoint)
            assert not torch.equal(weights.views(4)["down"], before["down"])
            one.reload(one.layers[1], 4, 4, checkpoint)
        assert all(torch.equal(view, before[name]) for name, view in weights.views(4).items())


def test_half_precision_models_compute_in_it(tiny_moes: dict[str, Path]) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model, made = load(Rank(0, 1, None), tiny_moes["mixtral"], PLAIN, dtype)
        assert {tensor.dtype for tensor in made.layers[0].weights.tensors.values()} == {dtype}
        assert forward(model, made, some_tokens(1, 3)).dtype == dtype
