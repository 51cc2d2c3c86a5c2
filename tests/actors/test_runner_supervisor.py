"""Runner supervisors with real processes: deadlines in every phase, diagnosis, one end, nothing left."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from support.tiny import tiny_model_dir

from actors.actor import Actor, spawn
from actors.address import Address
from actors.clock import SYSTEM_CLOCK
from actors.reporter import Reporter
from actors.runner_supervisor import Order, RunnerSupervisor, ShutDown
from actors.settings import Settings
from actors.streams import TokenHub
from actors.system import ActorSystem
from engines import wire
from engines.cards import card_from_directory
from events import commands as cmd
from events import status as st
from events.base import Report
from events.values import Placement, Rank, Sampling

GREEDY = Sampling(max_tokens=8, temperature=0.0, top_p=1.0, seed=0)
LONG = Sampling(max_tokens=3000, temperature=0.0, top_p=1.0, seed=0)
PATIENT = Settings(home="unused")


class Listener(Actor):
    """Stands where the master stands: takes every report."""

    def __init__(self, reports: list[Report]) -> None:
        super().__init__()
        self._reports = reports

    def receive(self, message: Report) -> None:
        self._reports.append(message)


@dataclass
class Runner:
    """A supervisor with its process, and what it has reported."""

    address: Address
    hub: TokenHub
    model: Path
    reports: list[Report]
    tokens: list[wire.Admitted | wire.Progress] = field(default_factory=list)

    @property
    def statuses(self) -> list[st.RunnerStatus]:
        return [each.status for each in self.reports if isinstance(each, cmd.ReportRunner)]

    @property
    def pid(self) -> int:
        (idle,) = [status for status in self.statuses if isinstance(status, st.Idle)]
        return idle.pid

    def ends(self, task_id: str) -> list[cmd.Finished | cmd.Broken | cmd.Stopped]:
        return [r.outcome for r in self.reports if isinstance(r, cmd.ReportTask) and r.task_id == task_id]

    def reached(self, *kinds: type[st.RunnerStatus]) -> bool:
        return any(isinstance(status, kinds) for status in self.statuses)

    def order(self, message: wire.ToRunner) -> None:
        self.address.tell(Order(message))

    def load(self) -> None:
        card = card_from_directory(self.model)
        self.order(
            wire.Load(
                card=card,
                path=str(self.model),
                engine="mlx",
                dtype="float32",
                context=4096,
                batch=4,
                start_layer=0,
                end_layer=card.n_layers,
                prefill_chunk=32,
            )
        )

    def ready(self) -> Runner:
        wait_for(lambda: self.reached(st.Idle))
        self.load()
        wait_for(lambda: self.reached(st.Loaded))
        self.order(wire.WarmUp())
        wait_for(lambda: self.reached(st.Ready))
        return self

    def generate(self, task_id: str, sampling: Sampling = GREEDY, text: str = "Go.") -> None:
        self.order(wire.Generate(task_id=task_id, kind="completion", sampling=sampling, text=text))

    def failure(self) -> st.Failed:
        """Its one end, waited for."""
        wait_for(lambda: not self.address.alive and self.reached(st.Failed, st.Shutdown))
        (end,) = [status for status in self.statuses if isinstance(status, st.Failed | st.Shutdown)]
        assert isinstance(end, st.Failed), end
        return end


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {seconds:g} s"
        time.sleep(0.005)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("tiny"), endless=True)


Start = Callable[[Settings], Runner]


@pytest.fixture
def start(model: Path) -> Iterator[Start]:
    """Starts supervisors; afterwards no process, thread or file of theirs may be left."""
    threads, files = set(threading.enumerate()), psutil.Process().num_fds()
    started: list[tuple[RunnerSupervisor, Runner]] = []
    reports: list[Report] = []
    master = spawn(Listener(reports), "master")

    def begin(settings: Settings) -> Runner:
        name = f"runner-{len(started)}"
        rank = Rank(
            rank=0,
            runner_id=name,
            node_id="node",
            device_id="cpu:0",
            start_layer=0,
            end_layer=2,
            reserved_bytes=0,
        )
        placement = Placement(
            attempt=1, engine="mlx", dtype="float32", strategy="auto", context=4096, batch=4, ranks=[rank]
        )
        hub = TokenHub("node")
        supervisor = RunnerSupervisor(
            "instance", placement, rank, settings, "node", Reporter(master, SYSTEM_CLOCK), hub
        )
        address = Address(name)
        runner = Runner(address, hub, model, reports)
        hub.attach(runner.tokens.append)
        supervisor.launch(address, ActorSystem())
        supervisor.wait_started(10)
        started.append((supervisor, runner))
        return runner

    yield begin
    for supervisor, runner in started:
        supervisor.stop()
        assert runner.address.join(20) is not None
        assert supervisor._process.returncode is not None, "the process was not waited for"
    master.incarnation.mailbox.put_system(_stop_message())
    master.join(5)
    wait_for(lambda: set(threading.enumerate()) <= threads | _timers())
    wait_for(lambda: psutil.Process().num_fds() <= files)
    assert not [child for child in psutil.Process().children() if child.name() == "cuebook-runner"]


def _timers() -> set[threading.Thread]:
    """The clock's one thread, which stays."""
    return {thread for thread in threading.enumerate() if thread.name == "timers"}


def _stop_message() -> object:
    from actors.actor import StopMessage

    return StopMessage()


def child_pid() -> int:
    """The pid of the one runner, also before it has said that it is there."""
    (only,) = [c for c in psutil.Process().children() if "engines.runner" in " ".join(c.cmdline())]
    return only.pid


def test_a_runner_lives_serves_and_ends_as_told(start: Start) -> None:
    runner = start(PATIENT).ready()
    runner.generate("task-1")
    wait_for(lambda: runner.ends("task-1"))
    (end,) = runner.ends("task-1")
    assert isinstance(end, cmd.Finished)
    assert end.usage.completion_tokens == 8
    runner.address.tell(ShutDown())
    wait_for(lambda: not runner.address.alive and runner.reached(st.Shutdown))
    names = [st.name(status) for status in runner.statuses]
    assert names[0] == "Idle"
    assert names[-2:] == ["ShuttingDown", "Shutdown"]
    assert names.count("Shutdown") == 1
    text = "".join(c.text for p in runner.tokens if isinstance(p, wire.Progress) for c in p.chunks)
    assert text


def test_a_runner_that_never_comes_up_misses_its_spawn_deadline(start: Start) -> None:
    runner = start(Settings(home="unused", start_timeout_s=1.0))
    stop(child_pid())
    _missed(runner.failure(), "spawn", "Spawning", 1.0)


def test_a_stopped_load_misses_its_deadline_though_the_start_had_a_longer_one(start: Start) -> None:
    runner = start(Settings(home="unused", load_timeout_s=1.0, load_timeout_s_per_gb=0.0))
    wait_for(lambda: runner.reached(st.Idle))
    stop(runner.pid)
    runner.load()
    _missed(runner.failure(), "load", "Idle", 1.0)


def test_a_stopped_warm_up_misses_its_deadline(start: Start) -> None:
    runner = start(Settings(home="unused", warm_up_timeout_s=1.0))
    wait_for(lambda: runner.reached(st.Idle))
    runner.load()
    wait_for(lambda: runner.reached(st.Loaded))
    stop(runner.pid)
    runner.order(wire.WarmUp())
    _missed(runner.failure(), "warm-up", "Loaded", 1.0)


def test_a_stopped_prefill_misses_its_deadline(start: Start) -> None:
    runner = start(Settings(home="unused", prefill_timeout_s=2.0, decode_timeout_s=1.0)).ready()
    stop(runner.pid)
    runner.generate("task-1")
    _missed(runner.failure(), "prefill", "Ready", 2.0)


def test_a_stopped_decode_misses_its_own_shorter_deadline(start: Start) -> None:
    runner = start(Settings(home="unused", prefill_timeout_s=600.0, decode_timeout_s=1.0)).ready()
    runner.generate("task-1", LONG)
    wait_for(lambda: any(isinstance(p, wire.Progress) and p.decoding for p in runner.tokens))
    began = time.monotonic()
    stop(runner.pid)
    _missed(runner.failure(), "decode", "Ready", 1.0)
    assert time.monotonic() - began < 60


def test_a_runner_that_takes_no_more_prompts_is_still_watched(start: Start) -> None:
    """More bytes than the socket holds: the supervisor must not wait in the sending of them."""
    runner = start(Settings(home="unused", prefill_timeout_s=2.0, decode_timeout_s=1.0)).ready()
    stop(runner.pid)
    for n in range(8):
        runner.generate(f"task-{n}", text="cue " * 100_000)
    _missed(runner.failure(), "prefill", "Ready", 2.0)


def test_new_prompts_do_not_hide_that_the_engine_hangs(start: Start) -> None:
    """A runner's reader goes on admitting and refusing while its engine hangs: that is no progress."""
    runner = start(Settings(home="unused", prefill_timeout_s=2.0, decode_timeout_s=2.0)).ready()
    _hold_main_thread(runner.pid)
    began = time.monotonic()
    sent = 0
    while runner.address.alive and time.monotonic() - began < 20:
        runner.generate(f"task-{sent}")
        sent += 1
        time.sleep(0.2)
    _missed(runner.failure(), "prefill", "Ready", 2.0)
    assert sum(isinstance(each, wire.Admitted) for each in runner.tokens) > 3
    assert time.monotonic() - began < 10


def _hold_main_thread(pid: int) -> None:
    """Stop the engine's thread and no other, as a hung driver would: attach to it as a debugger does."""
    attach, wait_all = 16, 0x40000000
    if sys.platform != "linux" or ctypes.CDLL(None).ptrace(attach, pid, None, None) != 0:
        pytest.skip("this system lets no one stop a single thread")
    os.waitpid(pid, wait_all)


def _missed(failure: st.Failed, phase: str, status: str, limit: float) -> None:
    assert failure.cause.code == "deadline_missed"
    assert failure.cause.detail == {"phase": phase, "limit_s": limit}
    assert f"no progress in {phase} for {limit:g} s" in failure.cause.message
    assert failure.phase == status
    assert failure.diagnostics.signal == "SIGKILL"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_diagnosis_names_the_signal(start: Start, number: signal.Signals) -> None:
    runner = start(PATIENT).ready()
    runner.generate("task-1", LONG)
    wait_for(lambda: any(isinstance(p, wire.Progress) and p.decoding for p in runner.tokens))
    os.kill(runner.pid, number)
    failure = runner.failure()
    assert failure.phase == "Ready"
    assert failure.cause.code == "runner_killed"
    assert failure.diagnostics.signal == number.name
    assert number.name in failure.cause.message
    assert runner.ends("task-1") == [], "the decider ends the tasks of a dead runner"


def test_a_load_that_the_engine_refuses_is_reported_with_its_cause(start: Start, tmp_path: Path) -> None:
    runner = start(PATIENT)
    wait_for(lambda: runner.reached(st.Idle))
    runner.model = tiny_model_dir(tmp_path / "broken")
    card = card_from_directory(runner.model)
    (runner.model / "model.safetensors").write_bytes(b"")
    order = wire.Load(
        card=card,
        path=str(runner.model),
        engine="mlx",
        dtype="float32",
        context=512,
        batch=1,
        start_layer=0,
        end_layer=2,
        prefill_chunk=32,
    )
    runner.order(order)
    failure = runner.failure()
    assert failure.cause.code == "model_files_broken"
    assert failure.phase == "Loading"
    assert failure.diagnostics.exit_code == 1


def test_a_prompt_that_no_message_can_carry_breaks_only_its_task(start: Start) -> None:
    runner = start(PATIENT).ready()
    big: list[dict[str, object]] = [{"type": "function", "function": {"name": "f", "maximum": 10**30}}]
    messages: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
    bad = wire.Generate(task_id="bad", kind="chat", sampling=GREEDY, messages=messages, tools=big)
    runner.order(bad)
    runner.generate("good")
    wait_for(lambda: runner.ends("bad") and runner.ends("good"))
    (broken,) = runner.ends("bad")
    assert isinstance(broken, cmd.Broken)
    assert broken.cause.code == "invalid_prompt"
    assert isinstance(runner.ends("good")[0], cmd.Finished)


def test_a_runner_that_sends_what_is_no_message_ends(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that was started from files of another version, while this node runs on."""
    monkeypatch.setattr("engines.processes.FromRunner", wire.Progress | wire.Admitted)
    failure = start(PATIENT).failure()
    assert failure.cause.code == "runner_unheard"
    assert "StatusIs" in failure.cause.message


def test_a_runner_whose_words_can_not_be_passed_on_ends(start: Start) -> None:
    def full(_: object) -> None:
        raise OSError("no room")

    runner = start(PATIENT).ready()
    runner.hub.attach(full)
    runner.generate("task-1", LONG)
    failure = runner.failure()
    assert failure.cause.code == "runner_unheard"
    assert "no room" in failure.cause.message
    assert failure.phase == "Ready"


def test_an_idle_runner_has_no_deadline(start: Start) -> None:
    runner = start(Settings(home="unused", prefill_timeout_s=3.0, decode_timeout_s=1.0)).ready()
    for n in range(2):
        runner.generate(f"task-{n}")
        wait_for(lambda n=n: runner.ends(f"task-{n}"))
        time.sleep(1.5)
    assert not runner.reached(st.Failed)


def test_a_supervisor_that_is_stopped_ends_even_a_stopped_process(start: Start) -> None:
    runner = start(PATIENT).ready()
    pid = runner.pid
    stop(pid)
    runner.address.incarnation.mailbox.put_system(_stop_message())
    assert runner.address.join(15) is not None
    assert not psutil.pid_exists(pid)
