"""The engine on a stand-in for NPUs: CPU-backed devices that PyTorch takes for npu:0 and npu:1.

They show that the code reaches for the right device and backend, nothing about Ascend; see docs/npu.md.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate", reason="the torch engine puts weights on accelerators with it")

from support.expert_moves import Mover, balanced_shard, random_map
from support.npu_standin.build import Standin, build
from support.rank_group import RankGroup
from support.runner_client import RunnerClient
from support.served import ServedNode, free_port
from support.tiny import tiny_model_dir
from support.upcycled import upcycle

from engines.torch.engine import TorchEngine
from events.experts import ExpertDispatch
from events.values import Sampling

pytestmark = pytest.mark.slow

LAYERS, EXPERTS = 2, 6
GREEDY = Sampling(max_tokens=24, temperature=0.0, top_p=1.0, seed=0)
DRAWN = Sampling(max_tokens=24, temperature=1.2, top_p=0.9, seed=5)
ASKED = [("stand by", GREEDY), ("the sea is wide " * 12, GREEDY), ("every light", DRAWN)]


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> Standin:
    if shutil.which("g++") is None:
        pytest.skip("the stand-in for NPUs is built with g++, which is not here")
    assert request.config.cache is not None
    return build(request.config.cache.mkdir("npu_standin"))


@pytest.fixture
def standin(built: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """Processes that are started from here find two NPUs."""
    for name, value in built.environment(devices=2).items():
        monkeypatch.setenv(name, value)
    return built


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dense = tiny_model_dir(tmp_path_factory.mktemp("dense"), layers=LAYERS)
    return upcycle(dense, tmp_path_factory.mktemp("experts"), experts=EXPERTS, noise=0.5)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """What a CPU answers."""
    with RunnerClient(engine_name="torch") as runner:
        return answers(runner.ready(model))


def answers(runner: RunnerClient, name: str = "task") -> list[list[int]]:
    for n, (text, sampling) in enumerate(ASKED):
        runner.chat(f"{name}-{n}", text, sampling)
    return [runner.outcome(f"{name}-{n}").tokens for n in range(len(ASKED))]


def test_the_self_test_finds_the_devices_and_that_they_compute(standin: Standin) -> None:
    tested = TorchEngine().self_test(measure=True)
    report = tested.report
    assert report.ok, report.detail
    assert (report.device_ids, report.dtype) == (["npu:0", "npu:1"], "bfloat16")
    assert report.speed > 0
    assert "npu" not in report.options
    assert [(d.device_id, d.kind, d.name, d.memory_bytes, d.memory_free) for d in tested.devices] == [
        (f"npu:{n}", "npu", "stand-in for an NPU", 1 << 30, 3 << 28) for n in range(2)
    ]


def test_without_a_device_the_cpu_is_used_and_the_reason_is_told(
    built: Standin, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_STANDIN_DEVICES", "0")
    report = TorchEngine().self_test().report
    assert (report.ok, report.device_ids) == (True, ["cpu:0"])
    assert "torch-npu finds no NPUs here" in report.options["npu"]
    assert "npu-smi info" in report.options["npu"]


def test_an_npu_gives_the_tokens_of_the_cpu(standin: Standin, model: Path, expected: list[list[int]]) -> None:
    with RunnerClient(engine_name="torch", device_id="npu:1") as runner:
        assert answers(runner.ready(model)) == expected


def test_collectives_of_npu_tensors(standin: Standin) -> None:
    hosts = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    command = [sys.executable, "-m", "support.npu_standin.collectives"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), hosts], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    one, two = (json.loads(out) for out, _ in said)
    assert (one.pop("device"), two.pop("device")) == ("npu:0 of 0", "npu:1 of 1")
    assert "contiguous" in one.pop("strided")
    assert "contiguous" in two.pop("strided")
    assert one == {
        "all_reduce": [10, 12, 14, 16],
        "broadcast": [10, 11, 12, 13],
        "all_to_all_single": [0, 1, 10, 11],
        "all_gather_single": [0, 1, 2, 3, 10, 11, 12, 13],
        "batch_isend_irecv": [10, 11, 12, 13],
    }
    assert two == one | {"all_to_all_single": [2, 3, 12, 13], "batch_isend_irecv": [0, 1, 2, 3]}


@pytest.mark.parametrize("dispatch", ["shared", "all_to_all"])
def test_experts_on_two_npus_move_and_answer_as_one_cpu(
    standin: Standin, model: Path, expected: list[list[int]], dispatch: ExpertDispatch
) -> None:
    shard = balanced_shard(LAYERS, EXPERTS, 2, redundant=2, dispatch=dispatch)
    with RankGroup(2, "torch", ["npu:0", "npu:1"]) as ranks:
        lead = ranks.ready(model, "expert", experts=shard).lead
        assert answers(lead, "before") == expected
        mover = Mover(lead, shard)
        for layer in range(LAYERS):
            mover.migrate(layer, random_map(random.Random(layer), EXPERTS, EXPERTS + 2, 2))
        assert answers(lead, "after") == expected


def test_a_node_reports_its_npus_and_places_on_them(standin: Standin, model: Path, tmp_path: Path) -> None:
    with ServedNode(tmp_path / "home", engines="torch", threads=1, offline=True) as node:
        (found,) = node.get("/state")["nodes"].values()
        assert [device["device_id"] for device in found["devices"]] == ["cpu:0", "npu:0", "npu:1"]
        assert found["engines"][0]["device_ids"] == ["npu:0", "npu:1"]
        node.ready(node.place(str(model), context=512, batch=2, dtype="float32"))
        (instance,) = node.get("/state")["instances"].values()
        assert instance["placement"]["ranks"][0]["device_id"].startswith("npu:")
        body = {"model": model.name, "max_tokens": 8, "messages": [{"role": "user", "content": "the sea"}]}
        code, answer = node.request("POST", "/v1/chat/completions", {**body, "temperature": 0})
        assert code == 200, answer
