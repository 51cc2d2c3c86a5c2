"""A real runner process with a test's hands on its socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from engines.cards import card_from_directory
from engines.processes import StderrTail, spawn_runner
from engines.registry import engine
from engines.wire import (
    Admitted,
    Cancel,
    FromRunner,
    Generate,
    Load,
    Logprob,
    Progress,
    StatusIs,
    Stop,
    TaskBroken,
    TaskDone,
    TaskDropped,
    WarmUp,
)
from events import status
from events.values import Sampling

END = TaskDone | TaskBroken | TaskDropped
GREEDY = Sampling(max_tokens=16, temperature=0.0, top_p=1.0, seed=0)


@dataclass
class Outcome:
    """What a runner sent for one task."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    steps: int = 0
    admitted: Admitted | None = None
    ends: list[END] = field(default_factory=list)

    @property
    def end(self) -> END:
        (only,) = self.ends
        return only


class RunnerClient:
    """Starts a runner, reads its socket on a thread and waits for what a test wants to see."""

    def __init__(self, *, engine_name: str = "mlx", device_id: str = "cpu:0", threads: int = 1) -> None:
        self.engine_name = engine_name
        self.device_id = device_id
        self.process, self.channel = spawn_runner(engine(engine_name).environment(threads))
        assert self.process.stderr
        self.stderr = StderrTail(self.process.stderr, "test")
        self.messages: list[FromRunner] = []
        self.tasks: dict[str, Outcome] = {}
        self.closed = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> RunnerClient:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.channel.close()

    def load(self, path: Path, *, context: int = 1024, batch: int = 8, prefill_chunk: int = 64) -> None:
        card = card_from_directory(path)
        message = Load(
            card=card,
            path=str(path),
            engine=self.engine_name,
            device_id=self.device_id,
            dtype="float32",
            context=context,
            batch=batch,
            start_layer=0,
            end_layer=card.n_layers,
            prefill_chunk=prefill_chunk,
        )
        self.channel.send(message)

    def ready(self, path: Path, **load: int) -> RunnerClient:
        self.load(path, **load)
        self.channel.send(WarmUp())
        self.wait(lambda: any(isinstance(s, status.Ready | status.Failed) for s in self.statuses))
        assert isinstance(self.statuses[-1], status.Ready), (self.statuses, self.stderr.lines(0))
        return self

    @property
    def statuses(self) -> list[status.RunnerStatus]:
        return [m.status for m in self.messages if isinstance(m, StatusIs)]

    def chat(self, task_id: str, text: str, sampling: Sampling = GREEDY) -> None:
        messages: list[dict[str, object]] = [{"role": "user", "content": text}]
        self.send(Generate(task_id=task_id, kind="chat", sampling=sampling, messages=messages))

    def send(self, message: Generate) -> None:
        self.tasks[message.task_id] = Outcome()
        self.channel.send(message)

    def cancel(self, task_id: str) -> None:
        self.channel.send(Cancel(task_id=task_id))

    def stop(self) -> int:
        self.channel.send(Stop())
        return self.process.wait(10)

    def outcome(self, task_id: str, timeout: float = 60) -> Outcome:
        self.wait(lambda: bool(self.tasks[task_id].ends), timeout)
        return self.tasks[task_id]

    def wait(self, true: Callable[[], bool], timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while not true():
                left = deadline - time.monotonic()
                assert left > 0, f"not seen in {timeout} s; last messages: {self.messages[-5:]}"
                assert not self.closed, f"runner gone: {self.messages[-3:]} {self.stderr.lines()}"
                self._changed.wait(left)

    def _read(self) -> None:
        for message in self.channel.receive():
            with self._changed:
                self._note(message)  # type: ignore[arg-type]
                self._changed.notify_all()
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _note(self, message: FromRunner) -> None:
        self.messages.append(message)
        if isinstance(message, Admitted):
            self.tasks[message.task_id].admitted = message
        elif isinstance(message, Progress):
            for task_id in message.decoding:
                self.tasks[task_id].steps += 1
            for chunk in message.chunks:
                task = self.tasks[chunk.task_id]
                assert not task.ends, "text after the end"
                task.text += chunk.text
                task.tokens += chunk.tokens
                task.logprobs += chunk.logprobs
        elif isinstance(message, END):
            self.tasks[message.task_id].ends.append(message)
