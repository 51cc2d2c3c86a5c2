"""The torch engine: transformers' own tokens, whoever is beside; what it would compute wrongly is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tokenizers

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402
from support.runner_client import RunnerClient  # noqa: E402
from support.served import ServedNode  # noqa: E402
from support.tiny import tiny_model_dir  # noqa: E402
from support.torch_alone import greedy, loaded, run, spec, tokens, transformers_tokens  # noqa: E402

from engines.attention import attention_refusal  # noqa: E402
from engines.cards import card_from_directory  # noqa: E402
from engines.contract import LoadError, Prompt, Refused  # noqa: E402
from engines.generator import BatchedGenerator  # noqa: E402
from engines.refusals import naming  # noqa: E402
from engines.torch.builder import TorchBuilder  # noqa: E402
from engines.torch.engine import TorchEngine  # noqa: E402
from engines.wire import TaskDone, TaskDropped  # noqa: E402
from events import status  # noqa: E402
from events.values import Quantization, Sampling  # noqa: E402

PROMPTS = [[(7 * n + 3 * k) % 400 for k in range(length)] for n, length in enumerate((5, 40, 1, 300, 17, 64))]
DRAWN = Sampling(max_tokens=30, temperature=1.0, top_p=0.9, seed=4711)
QUESTIONS = ["Write one sentence about the sea.", "What do bees make?", "How many legs has a spider?"]


@pytest.fixture(scope="module")
def generator(endless: Path) -> BatchedGenerator:
    return loaded(endless, prefill_chunk=32, batch=4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model_dir(tmp_path / "model", endless=True)


def _prompts(tokens: int, prompts: list[list[int]] = PROMPTS) -> dict[str, tuple[list[int], Sampling]]:
    return {f"t{n}": (prompt, greedy(tokens)) for n, prompt in enumerate(prompts)}


@pytest.mark.parametrize(
    "kind", [{"endless": True}, {}, {"tied": True}, {"model_type": "qwen2", "endless": True}], ids=str
)
def test_tokens_are_those_of_transformers(tmp_path: Path, kind: dict[str, Any]) -> None:
    path = tiny_model_dir(tmp_path / "model", **kind)
    engine = loaded(path)
    wanted = transformers_tokens(path, PROMPTS, 24)
    for n, prompt in enumerate(PROMPTS):
        assert tokens(run(engine, {"t": (prompt, greedy(24))})["t"]) == wanted[n], n


def test_chunks_and_company_change_no_token(endless: Path, generator: BatchedGenerator) -> None:
    """Six prompts for four slots: they wait, join and leave at different steps."""
    wanted = transformers_tokens(endless, PROMPTS, 40)
    steps = run(generator, _prompts(40))
    assert [tokens(steps[f"t{n}"]) for n in range(len(PROMPTS))] == wanted
    chunks = [step.prefill_done for step in steps["t3"] if not step.n_tokens]
    assert chunks == [*range(32, 300, 32), 300]


def test_a_neighbour_that_is_cancelled_changes_no_token(endless: Path, generator: BatchedGenerator) -> None:
    wanted = transformers_tokens(endless, PROMPTS[:2], 40)
    cancels = {3: "long", 9: "other", 20: "late"}
    generator.submit("other", PROMPTS[4], greedy(400))
    for n in range(2):
        generator.submit(f"t{n}", PROMPTS[n], greedy(40))
    found: dict[str, list[int]] = {}
    for step in range(200):
        if step == 1:
            generator.submit("long", PROMPTS[3], greedy(400))  # cancelled in its prefill
        if step == 12:
            generator.submit("late", PROMPTS[5], greedy(400))
        if step in cancels:
            assert generator.cancel(cancels[step])
        for one in generator.step():
            found.setdefault(one.task_id, []).extend(one.tokens)
    assert [found["t0"], found["t1"]] == wanted
    assert not generator.busy
    assert not generator.cancel("t0")


def test_what_is_left_in_a_slot_spoils_nobody(endless: Path) -> None:
    """Keys and values that are not finite, as float16 may leave them, are gone with their sequence."""
    generator = loaded(endless, batch=2)
    (wanted,) = transformers_tokens(endless, PROMPTS[:1], 12)
    batch = generator._batch
    generator.submit("bad", PROMPTS[1], greedy(200))
    generator.submit("good", PROMPTS[2], greedy(200))
    for _ in range(4):
        generator.step()
    with torch.inference_mode():
        for layer in batch._cache.layers:  # type: ignore[attr-defined]
            layer.values[0, :, :20] = torch.nan
    assert generator.cancel("bad")
    assert generator.cancel("good")
    steps = run(generator, {"a": (PROMPTS[0], greedy(12)), "b": (PROMPTS[1], greedy(12))})
    assert tokens(steps["a"]) == wanted


def test_a_seed_gives_the_same_tokens_alone_and_in_company(generator: BatchedGenerator) -> None:
    alone = tokens(run(generator, {"t": (PROMPTS[1], DRAWN)})["t"])
    others = {f"o{n}": (prompt, Sampling(20 + n, 0.8, 1.0, n)) for n, prompt in enumerate(PROMPTS)}
    assert tokens(run(generator, {**others, "t": (PROMPTS[1], DRAWN)})["t"]) == alone
    assert tokens(run(generator, {"t": (PROMPTS[1], Sampling(30, 1.0, 0.9, 4712))})["t"]) != alone


def test_logprobs_are_the_models_own(endless: Path, generator: BatchedGenerator) -> None:
    from transformers import AutoModelForCausalLM

    steps = run(generator, {"t": (PROMPTS[0], greedy(6, logprobs=3)), "o": (PROMPTS[1], DRAWN)})["t"]
    entries = [entry for step in steps for entry in step.logprobs]
    reference: Any = AutoModelForCausalLM.from_pretrained(endless, dtype=torch.float32)
    with torch.inference_mode():
        logits = reference(torch.tensor([PROMPTS[0] + tokens(steps)])).logits[0]
    rows = torch.log_softmax(logits[len(PROMPTS[0]) - 1 : -1], dim=-1)
    assert len(entries) == 6
    for entry, row in zip(entries, rows, strict=True):
        best = torch.topk(row, 3)
        assert [top[0] for top in entry.top] == best.indices.tolist()
        assert np.allclose([top[3] for top in entry.top], best.values.numpy(), atol=1e-4)
        assert entry.logprob == entry.top[0][3]


def test_a_stop_string_ends_the_answer_before_it(generator: BatchedGenerator) -> None:
    whole = "".join(step.text for step in run(generator, {"t": (PROMPTS[0], greedy(40))})["t"])
    stop = whole[10:14]
    steps = run(generator, {"t": (PROMPTS[0], greedy(40, stop=[stop]))})["t"]
    assert "".join(step.text for step in steps) == whole[: whole.index(stop)]
    assert steps[-1].finish == "stop"


def test_an_error_in_one_sampler_breaks_one_task(
    generator: BatchedGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no nucleus today")

    monkeypatch.setattr("engines.torch.sampling.nucleus", broken)
    steps = run(generator, {"good": (PROMPTS[0], greedy(8)), "bad": (PROMPTS[1], DRAWN)})
    assert steps["good"][-1].finish == "length"
    assert steps["bad"][-1].failure is not None
    assert "no nucleus today" in steps["bad"][-1].failure.message


def test_prepare_templates_and_refuses_what_is_too_long(tiny: Path) -> None:
    engine = loaded(tiny)
    chat = Prompt(kind="chat", messages=[{"role": "user", "content": "the sea"}])
    from transformers import AutoTokenizer

    reference: Any = AutoTokenizer.from_pretrained(tiny)
    wanted = reference.apply_chat_template(chat.messages, add_generation_prompt=True, return_dict=False)
    assert list(engine.prepare(chat, greedy(4))) == wanted
    with pytest.raises(Refused) as refused:
        engine.prepare(Prompt(kind="completion", tokens=[1] * 1020), greedy(12))
    assert refused.value.cause.code == "context_length_exceeded"


def test_a_word_beyond_the_vocabulary_is_refused_before_it_breaks_the_batch(tmp_path: Path) -> None:
    path = tiny_model_dir(tmp_path / "model", endless=True)
    tokenizer: Any = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_tokens([f"<|extra {n}|>" for n in range(40)])
    tokenizer.save(str(path / "tokenizer.json"))
    engine = loaded(path)
    chat = Prompt(kind="chat", messages=[{"role": "user", "content": "the <|extra 39|> sea"}])
    with pytest.raises(Refused) as refused:
        engine.prepare(chat, greedy(4))
    assert refused.value.cause.code == "invalid_prompt"


def test_the_shortest_contexts_are_warmed_up_too(tiny: Path) -> None:
    for context in range(1, 9):
        engine = loaded(tiny, context=context)
        room = [0] * max(1, context - 1)
        assert tokens(run(engine, {"t": (room, greedy(1))})["t"])


# Loading


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_layers_are_counted_and_weights_cast(model: Path, dtype: str) -> None:
    seen: list[tuple[int, int]] = []
    builder = TorchBuilder(spec(model, dtype=dtype))
    assert builder.load(lambda layers, total: seen.append((layers, total))) == []
    assert seen == [(0, 2), (1, 2), (2, 2)]
    module = builder.model.model
    assert {p.dtype for p in module.parameters()} == {getattr(torch, dtype)}
    assert not any(p.requires_grad for p in module.parameters())
    assert not module.training


def _change(path: Path, **changes: object) -> None:
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "gone"}))


def _refusal(path: Path, **changes: Any) -> str:
    with pytest.raises(LoadError) as error:
        TorchBuilder(spec(path, **changes)).load(lambda layers, total: None)
    assert error.value.cause.message.endswith(".")
    return error.value.cause.code


def test_rope_theta_is_read_wherever_it_stands(model: Path) -> None:
    nested = {"rope_type": "default", "rope_theta": 123456.0}
    for changes in ({"rope_theta": 123456.0}, {"rope_theta": "gone", "rope_parameters": nested}):
        _change(model, **changes)
        builder = TorchBuilder(spec(model))
        builder.load(lambda layers, total: None)
        assert builder.model.model.config.rope_parameters["rope_theta"] == 123456.0


def test_two_rope_thetas_that_disagree_are_refused(model: Path) -> None:
    card = card_from_directory(model)
    _change(model, rope_theta=10000.0, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert _refusal(model, card=card) == "config_conflict"


def _weights(path: Path, change: Any) -> None:
    file = path / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def _gpu_is_full() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


@pytest.mark.parametrize("load", [lambda: torch.empty(10**15), _gpu_is_full])
def test_memory_that_is_not_enough_is_named(tmp_path: Path, load: Callable[[], object]) -> None:
    with pytest.raises(LoadError, match=r"do not fit into memory: .*allocate") as refused:
        naming(tmp_path, load)
    assert refused.value.cause.code == "out_of_memory"


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "model_files_missing"),
        (lambda path: (path / "model.safetensors").write_bytes(b"nonsense" * 9), "model_files_broken"),
        (lambda path: (path / "tokenizer.json").write_text("{"), "load_error"),
        (lambda path: _change(path, model_type="never_seen"), "load_error"),
        (lambda path: _change(path, layer_types=["linear_attention"] * 2), "attention_unsupported"),
        (lambda path: _change(path, sliding_window=100), "attention_unsupported"),
        (
            lambda path: _weights(
                path, lambda w: {k: v for k, v in w.items() if k != "model.layers.1.mlp.up_proj.weight"}
            ),
            "weights_mismatch",
        ),
        (
            lambda path: _weights(path, lambda w: w | {"model.extra.weight": np.zeros(3, np.float32)}),
            "weights_mismatch",
        ),
        (
            lambda path: _weights(path, lambda w: w | {"model.norm.weight": np.zeros(3, np.float32)}),
            "weights_mismatch",
        ),
    ],
    ids=["gone", "nonsense", "tokenizer", "type", "linear", "window", "lacking", "more", "shape"],
)
def test_what_would_be_computed_wrongly_is_refused(model: Path, harm: Any, code: str) -> None:
    card = card_from_directory(model)
    harm(model)
    assert _refusal(model, card=card) == code


@pytest.mark.parametrize("change", [{"layer_types": ["linear_attention"] * 2}, {"sliding_window": 100}])
def test_attention_is_refused_by_the_sentence_of_the_placement(model: Path, change: dict[str, Any]) -> None:
    _change(model, **change)
    card = card_from_directory(model)
    with pytest.raises(LoadError) as error:
        TorchBuilder(spec(model)).load(lambda layers, total: None)
    assert error.value.cause.message == f"{attention_refusal(card, spec(model).context)}."


def test_placements_that_it_can_not_serve_are_refused(model: Path) -> None:
    card = card_from_directory(model)
    assert _refusal(model, end_layer=1) == "wrong_layers"
    assert _refusal(model, card=msgspec.structs.replace(card, quantization=Quantization(4, 64))) == (
        "quantization_unsupported"
    )
    with pytest.raises(LoadError, match="cpu, cuda, npu"):
        TorchBuilder(spec(model, device_id="metal:0"))
    if not torch.cuda.is_available():
        with pytest.raises(LoadError, match="no CUDA device"):
            TorchBuilder(spec(model, device_id="cuda:0"))


# From outside


def test_the_self_test_says_what_it_found() -> None:
    report = TorchEngine().self_test(measure=True).report
    assert report.ok, report.detail
    assert report.device_ids
    assert report.strategies == ["expert"]
    assert report.speed > 1
    assert report.options["dtype"].startswith(report.dtype)


def test_without_torch_the_report_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = TorchEngine().self_test().report
    assert not report.ok
    assert "pip install 'cuebook[torch]'" in report.detail


def test_a_runner_loads_answers_cancels_and_stops(endless: Path) -> None:
    with RunnerClient(engine_name="torch") as runner:
        runner.ready(endless, context=4096, prefill_chunk=32)
        names = [status.name(s) for s in runner.statuses]
        assert names == ["Idle", *["Loading"] * 4, "Loaded", "WarmingUp", "Ready"]
        idle = runner.statuses[0]
        assert isinstance(idle, status.Idle)
        assert "netlib reference" not in idle.options.values()  # that is MLX's
        runner.chat("long", "for ever", greedy(4000))
        runner.chat("short", "the sea", greedy(8))
        assert isinstance(runner.outcome("short").end, TaskDone)
        assert len(runner.tasks["short"].tokens) == 8
        runner.cancel("long")
        assert isinstance(runner.outcome("long").end, TaskDropped)
        assert runner.stop() == 0


def test_a_node_with_the_torch_engine_answers(tiny: Path, tmp_path: Path) -> None:
    with ServedNode(tmp_path / "home", engines="torch", threads=1, offline=True) as node:
        (found,) = node.get("/state")["nodes"].values()
        (report,) = found["engines"]
        assert (report["engine"], report["ok"]) == ("torch", True)
        node.ready(node.place(str(tiny), context=512, batch=2, dtype="float32"))
        body = {"model": tiny.name, "max_tokens": 8, "messages": [{"role": "user", "content": "the sea"}]}
        code, answer = node.request("POST", "/v1/chat/completions", {**body, "temperature": 0})
        assert code == 200, answer
    loaded_here = loaded(tiny, context=512, batch=2)
    prompt = loaded_here.prepare(Prompt(kind="chat", messages=body["messages"]), greedy(8))  # type: ignore[arg-type]
    steps = run(loaded_here, {"t": (prompt, greedy(8))})["t"]
    assert answer["choices"][0]["message"]["content"] == "".join(step.text for step in steps)


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_says_what_transformers_says(smollm2: Path) -> None:
    """Questions without a near tie in their first tokens, in float32: alone and side by side."""
    engine = loaded(smollm2, prefill_chunk=16)
    messages = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [list(engine.prepare(Prompt(kind="chat", messages=m), greedy(24))) for m in messages]
    wanted = transformers_tokens(smollm2, prompts, 24)
    steps = run(engine, _prompts(24, prompts))
    assert [tokens(steps[f"t{n}"]) for n in range(len(prompts))] == wanted
