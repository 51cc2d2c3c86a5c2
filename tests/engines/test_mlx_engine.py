"""Loading: what mlx-lm would misread is corrected or refused; broken files are named; the BLAS is known."""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.tiny import tiny_model_dir

from engines.cards import card_from_directory
from engines.contract import LoadError, LoadSpec, Prompt, Refused
from engines.generator import BatchedGenerator
from engines.mlx import blas, checks
from engines.mlx.builder import MlxBuilder
from engines.mlx.engine import MlxEngine
from engines.processes import python_environment
from engines.serving import Serving, StepFailed
from engines.wire import Admitted, FromRunner, Generate, TaskBroken, TaskDone
from events.values import ModelCard, Sampling

GREEDY = Sampling(max_tokens=12, temperature=0.0, top_p=1.0, seed=0)
DRAWN = Sampling(max_tokens=12, temperature=1.0, top_p=0.5, seed=0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model_dir(tmp_path / "model", endless=True)


def _card(path: Path) -> ModelCard:
    return card_from_directory(path)


def _spec(card: ModelCard, path: Path, dtype: str = "float32") -> LoadSpec:
    return LoadSpec(
        card=card,
        path=str(path),
        dtype=dtype,  # type: ignore[arg-type]
        context=256,
        batch=4,
        start_layer=0,
        end_layer=card.n_layers,
        prefill_chunk=64,
    )


def _change(path: Path, **changes: object) -> None:
    config = json.loads((path / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value != "gone"}
    (path / "config.json").write_text(json.dumps(config))


def _load(card: ModelCard, path: Path, dtype: str = "float32") -> tuple[MlxBuilder, list[str]]:
    builder = MlxBuilder(_spec(card, path, dtype))
    return builder, builder.load(lambda _n, _total: None)


def _refusal(card: ModelCard, path: Path) -> str:
    with pytest.raises(LoadError) as error:
        _load(card, path)
    assert error.value.cause.message.endswith(".")
    return error.value.cause.code


def _args(builder: MlxBuilder) -> object:
    return builder._model.args  # type: ignore[union-attr]


def test_a_nested_rope_theta_is_supplied_and_noted(model: Path) -> None:
    _change(model, rope_theta="gone", rope_parameters={"rope_type": "default", "rope_theta": 123456.0})
    builder, notes = _load(_card(model), model)
    assert _args(builder).rope_theta == 123456.0  # type: ignore[attr-defined]
    assert any("rope_theta = 123456.0" in note for note in notes)


def test_a_nested_rope_scaling_is_supplied(model: Path) -> None:
    nested = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    _change(model, rope_parameters=nested)
    builder, _ = _load(_card(model), model)
    assert _args(builder).rope_scaling == {"rope_type": "linear", "factor": 2.0}  # type: ignore[attr-defined]


def test_two_rope_thetas_that_disagree_are_refused(model: Path) -> None:
    card = _card(model)
    _change(model, rope_theta=10000.0, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert _refusal(card, model) == "config_conflict"


def test_an_output_matrix_is_not_replaced_by_the_embeddings(model: Path) -> None:
    _change(model, tie_word_embeddings="gone")
    builder, notes = _load(_card(model), model)
    assert _args(builder).tie_word_embeddings is False  # type: ignore[attr-defined]
    assert any("lm_head" in note for note in notes)


def test_experts_under_another_name_are_supplied() -> None:
    from mlx_lm.models.qwen3_moe import ModelArgs

    overrides, notes = checks.corrections({"num_local_experts": 6}, ModelArgs, frozenset())
    assert overrides == {"num_experts": 6}
    assert notes
    with pytest.raises(LoadError):
        checks.corrections({"num_local_experts": 6, "num_experts": 8}, ModelArgs, frozenset())


def test_a_value_that_the_model_did_not_take_is_refused() -> None:
    class Args:
        rope_theta = 10000.0

    with pytest.raises(LoadError, match="rope_theta"):
        checks.verify({"rope_theta": 5e5}, Args())


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 100])


def _without(name: str) -> Callable[[Path], None]:
    def drop(path: Path) -> None:
        save_file({k: v for k, v in load_file(path).items() if k != name}, path)

    return drop


def _with_more(path: Path) -> None:
    save_file(load_file(path) | {"model.extra.weight": np.zeros(3, np.float32)}, path)


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (Path.unlink, "model_files_missing"),
        (_cut, "model_files_broken"),
        (lambda path: path.write_bytes(b"nonsense" * 9), "model_files_broken"),
        (_without("model.layers.1.mlp.up_proj.weight"), "weights_mismatch"),
        (_with_more, "weights_mismatch"),
    ],
)
def test_broken_weights_are_refused(model: Path, harm: Callable[[Path], None], code: str) -> None:
    card = _card(model)
    harm(model / "model.safetensors")
    assert _refusal(card, model) == code


def test_other_broken_files_are_refused(model: Path) -> None:
    card = _card(model)
    (model / "tokenizer.json").write_text("{")
    assert _refusal(card, model) == "load_error"
    _change(model, model_type="never_seen")
    assert _refusal(card, model) == "load_error"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_cast_and_logprobs_read_in_every_dtype(model: Path, dtype: str) -> None:
    builder, _ = _load(_card(model), model, dtype)
    assert builder._model.lm_head.weight.dtype == getattr(mx, dtype)  # type: ignore[union-attr]
    generator = builder.warm_up()
    wanted = Sampling(max_tokens=3, temperature=0.0, top_p=1.0, seed=0, logprobs=2)
    generator.submit("t", [1, 2, 3], wanted)
    logprobs = []
    while generator.busy:
        logprobs += [entry for step in generator.step() for entry in step.logprobs]
    assert len(logprobs) == 3
    assert all(entry.top[0][3] == entry.logprob for entry in logprobs)  # bfloat16 has ties


@pytest.fixture(scope="module")
def generator(endless: Path) -> BatchedGenerator:
    builder, _ = _load(_card(endless), endless)
    return builder.warm_up()


class Recorder:
    """A channel's sending end."""

    def __init__(self) -> None:
        self.sent: list[FromRunner] = []

    def send(self, message: FromRunner) -> None:
        self.sent.append(message)


def _serve(generator: BatchedGenerator, requests: list[Generate]) -> Recorder:
    recorder = Recorder()
    serving = Serving(recorder, generator)  # type: ignore[arg-type]
    for request in requests:
        serving.admit(request)
    threading.Thread(target=_quit_when_done, args=(serving, recorder, len(requests))).start()
    serving.run()
    return recorder


def _quit_when_done(serving: Serving, recorder: Recorder, n: int) -> None:
    while sum(isinstance(m, TaskDone | TaskBroken) for m in list(recorder.sent)) < n:
        time.sleep(0.005)
    serving.quit()


def _generate(task_id: str, sampling: Sampling) -> Generate:
    return Generate(task_id=task_id, kind="completion", sampling=sampling, text="the sea")


def test_an_error_in_one_sampler_breaks_one_task(
    generator: BatchedGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> mx.array:
        raise ValueError("no nucleus today")

    monkeypatch.setattr("engines.mlx.sampling.nucleus", broken)
    sent = _serve(generator, [_generate("good", GREEDY), _generate("bad", DRAWN)]).sent
    (bad,) = [m for m in sent if isinstance(m, TaskBroken)]
    (good,) = [m for m in sent if isinstance(m, TaskDone)]
    assert (bad.task_id, bad.cause.code) == ("bad", "generation_error")
    assert "no nucleus today" in bad.cause.message
    assert (good.task_id, good.usage.completion_tokens) == ("good", 12)
    assert not generator.busy


def test_an_error_of_the_whole_step_tells_every_task(
    generator: BatchedGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> object:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(generator, "step", broken)
    recorder = Recorder()
    serving = Serving(recorder, generator)  # type: ignore[arg-type]
    for n in range(3):
        serving.admit(_generate(f"t{n}", GREEDY))
    with pytest.raises(StepFailed) as failed:
        serving.run()
    assert "the device is gone" in failed.value.cause.message
    ends = [m for m in recorder.sent if not isinstance(m, Admitted)]
    assert [m.task_id for m in ends if isinstance(m, TaskBroken)] == ["t0", "t1", "t2"]
    for n in range(3):
        generator.cancel(f"t{n}")


def test_prepare_counts_what_the_template_adds(generator: BatchedGenerator) -> None:
    message: dict[str, object] = {"role": "user", "content": [{"type": "text", "text": "the sea"}]}
    tokens = generator.prepare(Prompt(kind="chat", messages=[message]), GREEDY)
    plain = generator.prepare(Prompt(kind="chat", messages=[{**message, "content": "the sea"}]), GREEDY)
    assert list(tokens) == list(plain)
    with pytest.raises(Refused) as refused:
        generator.prepare(Prompt(kind="completion", tokens=[1] * 250), GREEDY)
    assert refused.value.cause.detail == {"prompt_tokens": 250, "max_tokens": 12, "context": 256}
    assert "context length" in refused.value.cause.message


def test_the_self_test_says_what_it_found() -> None:
    report = MlxEngine().self_test().report
    assert report.ok, report.detail
    assert report.device_ids
    if report.device_ids == ["cpu:0"]:
        assert report.dtype == "float32"
        assert report.options["blas"].startswith("openblas" if blas.find() else "netlib")


def test_a_crash_in_the_self_test_is_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crash = tmp_path / "sitecustomize.py"
    crash.write_text("import os; os.write(2, b'dying\\n'); os.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = MlxEngine().self_test().report
    assert not report.ok
    assert "dying" in report.detail
    assert "-6" in report.detail


def test_openblas_is_searched_where_distributions_put_it(tmp_path: Path) -> None:
    for found in ("lib/aarch64-linux-gnu/openblas-pthread/libblas.so.3", "lib64/libopenblasp.so.0"):
        path = tmp_path / Path(found).parts[0] / Path(*Path(found).parts[1:])
        path.parent.mkdir(parents=True)
        path.touch()
        assert blas.find([str(tmp_path / "lib")]) == path
        shutil.rmtree(tmp_path / Path(found).parts[0])
    assert blas.find([str(tmp_path / "lib")]) is None


@pytest.mark.skipif(not blas.wanted(), reason="MLX brings Accelerate on macOS")
def test_the_environment_preloads_openblas_and_keeps_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/some/other.so")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    environment = MlxEngine().environment(3)
    assert environment["OPENBLAS_NUM_THREADS"] == environment["OMP_NUM_THREADS"] == "3"
    found = blas.find()
    assert environment.get("LD_PRELOAD") == (f"{found}:/some/other.so" if found else None)
    assert (python_environment() | environment)["OPENBLAS_CORETYPE"] == "Haswell"


@pytest.mark.skipif(not blas.wanted(), reason="MLX brings Accelerate on macOS")
def test_a_process_without_preload_computes_with_the_reference_blas() -> None:
    environment = {k: v for k, v in python_environment().items() if k != "LD_PRELOAD"}
    code = "from engines.mlx.blas import in_use; print(in_use()['blas'])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "netlib reference"
