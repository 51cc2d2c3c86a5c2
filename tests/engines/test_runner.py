"""The runner process over its real socket: states, tasks, cancels, poison and ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from support.runner_client import GREEDY, RunnerClient
from support.tiny import tiny_model_dir

from engines.processes import diagnose, python_environment
from engines.runner import FAILED, ORPHANED
from engines.wire import Generate, Progress, TaskBroken, TaskDone, TaskDropped, WarmUp
from events import status
from events.values import Sampling

LONG = Sampling(max_tokens=3000, temperature=0.0, top_p=1.0, seed=0)


def _sampling(**changes: object) -> Sampling:
    fields = {"max_tokens": 16, "temperature": 0.0, "top_p": 1.0, "seed": 0} | changes
    return Sampling(**fields)  # type: ignore[arg-type]


def test_says_every_state_from_idle_to_shutdown(tiny: Path) -> None:
    with RunnerClient() as runner:
        runner.ready(tiny)
        names = [status.name(s) for s in runner.statuses]
        assert names == ["Idle", *["Loading"] * 4, "Loaded", "WarmingUp", "Ready"]
        loading = [(s.layers, s.total) for s in runner.statuses if isinstance(s, status.Loading)]
        assert loading == [(0, 2), (0, 2), (1, 2), (2, 2)]
        idle = runner.statuses[0]
        assert isinstance(idle, status.Idle)
        assert idle.pid == runner.process.pid
        assert idle.started_at == psutil.Process(idle.pid).create_time()
        assert runner.stop() == 0
        runner.wait(lambda: len(runner.statuses) == 10)
        assert [status.name(s) for s in runner.statuses[-2:]] == ["ShuttingDown", "Shutdown"]


def test_a_stop_while_loading_is_no_failure(tiny: Path) -> None:
    with RunnerClient() as runner:
        runner.load(tiny)
        assert runner.stop() == 0
        runner.wait(lambda: isinstance(runner.statuses[-1], status.Shutdown))


_STOPPED_LATE = """
import socket, sys
from engines import registry, runner
from engines.wire import Channel, Stop, ToRunner

class Instant:  # an engine, its builder and its generator, which do nothing and at once
    busy = False
    def builder(self, *_): return self
    def load(self, *_): return []
    def warm_up(self): return self

class Late(runner.Serving):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        made._route(Stop())  # what the reader's thread does

registry.ENGINES["mlx"] = Instant()
runner.Serving = Late
made = runner.Runner(Channel(socket.socket(fileno=int(sys.argv[1])), ToRunner))
raise SystemExit(made.run())
"""


def test_a_stop_just_when_the_warm_up_ends_is_heard(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return popen([sys.executable, "-c", _STOPPED_LATE, command[-1]], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    with RunnerClient() as runner:
        runner.load(tiny)
        runner.channel.send(WarmUp())
        runner.wait(lambda: any(isinstance(s, status.Ready | status.Shutdown) for s in runner.statuses))
        assert [status.name(s) for s in runner.statuses[-2:]] == ["ShuttingDown", "Shutdown"]
        assert runner.process.wait(10) == 0


def test_is_its_own_session_and_idle_before_any_engine_is_imported() -> None:
    with RunnerClient() as runner:
        runner.wait(lambda: bool(runner.statuses))
        pid = runner.process.pid
        assert os.getsid(pid) == pid
        maps = Path(f"/proc/{pid}/maps")
        assert not maps.exists() or "libmlx" not in maps.read_text()


def test_eight_at_once_answer_as_each_alone(endless_runner: RunnerClient) -> None:
    questions = [f"{'What now? ' * n}Go." for n in range(8)]
    for n, question in enumerate(questions):
        endless_runner.chat(f"eight-{n}", question)
    together = [endless_runner.outcome(f"eight-{n}") for n in range(8)]
    for n, question in enumerate(questions):
        endless_runner.chat(f"alone-{n}", question)
        alone = endless_runner.outcome(f"alone-{n}")
        assert isinstance(alone.end, TaskDone)
        assert alone.end.finish_reason == "length"
        assert alone.end.usage == together[n].end.usage
        assert len(alone.tokens) == 16 == alone.end.usage.completion_tokens
        # A batch multiplies other shapes, which may change the last bits of a logit; these are no near ties.
        assert alone.tokens == together[n].tokens
        assert alone.text == together[n].text


def test_more_tasks_than_the_batch_wait_their_turn(endless: Path) -> None:
    with RunnerClient() as runner:
        runner.ready(endless, batch=1)
        for n in range(3):
            runner.chat(f"t{n}", "one after the other")
        ends = [runner.outcome(f"t{n}").end for n in range(3)]
        assert all(isinstance(end, TaskDone) for end in ends)
        waits = [end.timings.queued_s for end in ends]  # type: ignore[union-attr]
        assert waits == sorted(waits)
        assert waits[2] > waits[0]
        at_once = [len(m.decoding) for m in runner.messages if isinstance(m, Progress)]
        assert max(at_once) == 1


def test_a_new_prompt_does_not_stop_running_streams(endless: Path) -> None:
    with RunnerClient() as runner:
        runner.ready(endless, context=4096, prefill_chunk=64)
        runner.chat("running", "go", LONG)
        runner.wait(lambda: runner.tasks["running"].steps > 5)
        runner.chat("long", "word " * 800)
        assert isinstance(runner.outcome("long").end, TaskDone)
        mixed = [m for m in runner.messages if isinstance(m, Progress) and "long" in m.prefilling]
        prompt = runner.tasks["long"].end.usage.prompt_tokens
        assert len(mixed) >= prompt // 64
        assert all(m.decoding == ["running"] for m in mixed)
        runner.cancel("running")
        assert isinstance(runner.outcome("running").end, TaskDropped)


def test_cancel_takes_effect_within_two_steps(endless_runner: RunnerClient) -> None:
    runner = endless_runner
    runner.chat("cancelled", "for ever", LONG)
    runner.chat("neighbour", "a little")
    runner.wait(lambda: runner.tasks["cancelled"].steps > 3)
    seen = runner.tasks["cancelled"].steps
    runner.cancel("cancelled")
    dropped = runner.outcome("cancelled")
    assert isinstance(dropped.end, TaskDropped)
    assert dropped.end.usage.completion_tokens == dropped.steps
    # A step takes about a millisecond, in which this process may not have its turn: of 3000 these are few.
    assert dropped.steps - seen < 1000
    assert isinstance(runner.outcome("neighbour").end, TaskDone)
    runner.cancel("cancelled")
    runner.cancel("never heard of")
    runner.chat("after", "all is well")
    assert isinstance(runner.outcome("after").end, TaskDone)
    assert len(dropped.ends) == 1


def test_cancel_in_the_queue_and_in_prefill(endless: Path) -> None:
    with RunnerClient() as runner:
        runner.ready(endless, context=4096, batch=1, prefill_chunk=4)
        runner.chat("prefilling", "word " * 800)
        runner.chat("queued", "later")
        runner.cancel("queued")
        runner.cancel("prefilling")
        for task_id in ("queued", "prefilling"):
            assert isinstance(runner.outcome(task_id).end, TaskDropped)
            assert runner.outcome(task_id).end.usage.completion_tokens == 0
        runner.chat("after", "now")
        assert isinstance(runner.outcome("after").end, TaskDone)


POISON = {
    "no messages": (Generate(task_id="", kind="chat", sampling=GREEDY), "invalid_prompt"),
    "no role": (
        Generate(task_id="", kind="chat", sampling=GREEDY, messages=[{"content": "x"}]),
        "invalid_prompt",
    ),
    "the template refuses the role": (
        Generate(task_id="", kind="chat", sampling=GREEDY, messages=[{"role": "ghost", "content": "boo"}]),
        "invalid_prompt",
    ),
    "content of the wrong kind": (
        Generate(task_id="", kind="chat", sampling=GREEDY, messages=[{"role": "user", "content": 7}]),
        "invalid_prompt",
    ),
    "an image": (
        Generate(
            task_id="",
            kind="chat",
            sampling=GREEDY,
            messages=[{"role": "user", "content": [{"type": "image_url"}]}],
        ),
        "invalid_prompt",
    ),
    "an empty text": (Generate(task_id="", kind="completion", sampling=GREEDY), "invalid_prompt"),
    "a token that is none": (
        Generate(task_id="", kind="completion", sampling=GREEDY, tokens=[1, 2, 10**9]),
        "invalid_prompt",
    ),
    "too long": (
        Generate(task_id="", kind="completion", sampling=GREEDY, text="sea " * 5000),
        "context_length_exceeded",
    ),
    "too much asked": (
        Generate(task_id="", kind="completion", sampling=_sampling(max_tokens=4096), text="sea"),
        "context_length_exceeded",
    ),
    "temperature": (
        Generate(task_id="", kind="completion", sampling=_sampling(temperature=float("nan")), text="sea"),
        "invalid_sampling",
    ),
    "negative temperature": (
        Generate(task_id="", kind="completion", sampling=_sampling(temperature=-1.0), text="sea"),
        "invalid_sampling",
    ),
    "top_p": (
        Generate(task_id="", kind="completion", sampling=_sampling(top_p=1.5), text="sea"),
        "invalid_sampling",
    ),
    "seed": (
        Generate(task_id="", kind="completion", sampling=_sampling(seed=-1), text="sea"),
        "invalid_sampling",
    ),
    "empty stop": (
        Generate(task_id="", kind="completion", sampling=_sampling(stop=[""]), text="sea"),
        "invalid_sampling",
    ),
    "logprobs": (
        Generate(task_id="", kind="completion", sampling=_sampling(logprobs=1000), text="sea"),
        "invalid_sampling",
    ),
}


@pytest.mark.parametrize("poison", POISON)
def test_poison_harms_nobody(endless_runner: RunnerClient, poison: str) -> None:
    runner = endless_runner
    message, code = POISON[poison]
    before, bad = f"before {poison}", f"poison {poison}"
    runner.chat(before, "calm")
    runner.send(msgspec.structs.replace(message, task_id=bad))
    end = runner.outcome(bad).end
    assert isinstance(end, TaskBroken)
    assert end.cause.code == code
    assert end.cause.message.endswith(".")
    assert "Traceback" not in end.cause.message
    assert isinstance(runner.outcome(before).end, TaskDone)
    assert len(runner.tasks[before].tokens) == 16
    assert runner.process.poll() is None


def test_an_answer_may_take_all_the_room(endless: Path) -> None:
    with RunnerClient() as runner:
        runner.ready(endless, context=64)
        runner.send(Generate(task_id="t", kind="completion", sampling=_sampling(max_tokens=0), text="sea"))
        usage = runner.outcome("t").end.usage
        assert usage.prompt_tokens + usage.completion_tokens == 64


def test_a_stop_string_is_never_shown(endless_runner: RunnerClient) -> None:
    runner = endless_runner
    runner.chat("whole", "go on", _sampling(max_tokens=60))
    text = runner.outcome("whole").text
    stop = text[20:26]
    runner.chat("stopped", "go on", _sampling(max_tokens=60, stop=["never there", stop]))
    stopped = runner.outcome("stopped")
    assert stopped.text == text[: text.index(stop)]
    assert isinstance(stopped.end, TaskDone)
    assert stopped.end.finish_reason == "stop"
    assert stopped.end.usage.completion_tokens < 60


def test_the_end_of_sequence_token_ends_an_answer_and_is_not_shown(tiny: Path) -> None:
    with RunnerClient() as runner:
        runner.ready(tiny)
        for n in range(20):
            runner.chat(f"t{n}", "what is the sea?", _sampling(max_tokens=300, temperature=1.5, seed=n))
        outcomes = [runner.outcome(f"t{n}") for n in range(20)]
        stopped = [o for o in outcomes if isinstance(o.end, TaskDone) and o.end.finish_reason == "stop"]
        assert stopped
        for outcome in stopped:
            assert outcome.end.usage.completion_tokens == len(outcome.tokens) + 1
            assert "<|im_end|>" not in outcome.text


def test_logprobs_come_with_their_tokens(endless_runner: RunnerClient) -> None:
    runner = endless_runner
    runner.chat("logprobs", "likely", _sampling(logprobs=3))
    outcome = runner.outcome("logprobs")
    assert [entry.token for entry in outcome.logprobs] == outcome.tokens
    assert b"".join(entry.raw for entry in outcome.logprobs).decode(errors="replace") == outcome.text
    for entry in outcome.logprobs:
        assert len(entry.top) == 3
        assert entry.top[0][0] == entry.token, "greedy draws the likeliest"
        assert entry.top[0][3] == entry.logprob <= 0
        assert [p for *_, p in entry.top] == sorted((p for *_, p in entry.top), reverse=True)


def test_generate_before_ready_is_refused_and_stop_works_while_idle(tiny: Path) -> None:
    with RunnerClient() as runner:
        runner.chat("early", "hello?")
        end = runner.outcome("early").end
        assert isinstance(end, TaskBroken)
        assert end.cause.code == "not_ready"
        assert runner.stop() == 0


def test_stop_drops_open_tasks(endless: Path) -> None:
    with RunnerClient() as runner:
        runner.ready(endless, context=4096)
        runner.chat("open", "for ever", LONG)
        runner.wait(lambda: runner.tasks["open"].steps > 3)
        assert runner.stop() == 0
        runner.wait(lambda: bool(runner.tasks["open"].ends))
        assert isinstance(runner.tasks["open"].end, TaskDropped)


def test_closing_the_socket_ends_it_in_the_middle_of_everything(endless: Path) -> None:
    with RunnerClient() as runner:
        runner.ready(endless, context=4096)
        runner.chat("open", "for ever", LONG)
        runner.wait(lambda: runner.tasks["open"].steps > 3)
        runner.channel.close()
        assert runner.process.wait(20) == ORPHANED


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_stopped_runner_dies_with_its_supervisor() -> None:
    supervisor = (
        "import os, signal, sys\n"
        "from engines.processes import spawn_runner\n"
        "process, channel = spawn_runner({})\n"
        "next(channel.receive())\n"
        "os.kill(process.pid, signal.SIGSTOP)\n"
        "print(process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", supervisor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=python_environment(),
    ) as parent:
        assert parent.stdout
        runner = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        runner.wait(20)


def test_sigkill_is_named(endless: Path) -> None:
    with RunnerClient() as runner:
        runner.wait(lambda: bool(runner.statuses))
        runner.process.send_signal(signal.SIGKILL)
        cause, diagnostics = diagnose(runner.process.wait(20), runner.stderr.lines())
        assert diagnostics.signal == "SIGKILL"
        assert cause.code == "runner_killed"
        assert "kill -9" in cause.message


def test_a_model_that_is_not_there_is_a_load_error(tiny: Path, tmp_path: Path) -> None:
    copy = tiny_model_dir(tmp_path / "copy")
    with RunnerClient() as runner:
        runner.load(copy)
        (copy / "model.safetensors").unlink()
        runner.wait(lambda: any(isinstance(s, status.Failed) for s in runner.statuses))
        failed = runner.statuses[-1]
        assert isinstance(failed, status.Failed)
        assert failed.phase == "Loading"
        assert failed.cause.code == "model_files_missing"
        assert runner.process.wait(20) == FAILED
