"""The runner's serving loop: prompts are admitted on the reader's thread, tokens drawn on the main one."""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from engines.contract import (
    Balanced,
    Generator,
    GroupLost,
    MoveFailed,
    Prompt,
    Refused,
    Step,
    TokenLogprob,
)
from engines.wire import (
    Admitted,
    ApplyLayer,
    Cancel,
    Channel,
    ChannelClosed,
    Chunk,
    DropStaging,
    ExpertLoad,
    FromRunner,
    Generate,
    LayerApplied,
    LayerStaged,
    Logprob,
    Progress,
    StageLayer,
    TaskBroken,
    TaskDone,
    TaskDropped,
)
from events.values import NO_TOKENS, Cause, Sampling, Timings, Usage

T = TypeVar("T")


class StepFailed(Exception):
    """The engine broke as a whole: no task can go on."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Admission:
    """A prepared prompt on its way from the reader's thread to the main one."""

    task_id: str
    tokens: Sequence[int]
    sampling: Sampling
    at: float


class Quit:
    """Wakes the main thread to end."""


Move = StageLayer | ApplyLayer | DropStaging
"""What moves experts between two steps."""
Inbox = queue.SimpleQueue[Admission | Cancel | Move | Quit]


@dataclass(slots=True)
class _Open:
    """A task that has not ended. Times are of `time.perf_counter`, 0 where not reached."""

    prompt_tokens: int
    admitted: float
    started: float = 0.0
    first_token: float = 0.0
    drawn: int = 0

    def usage(self) -> Usage:
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.drawn)

    def timings(self, now: float) -> Timings:
        first = self.first_token or now
        return Timings(
            queued_s=self.started - self.admitted, prefill_s=first - self.started, decode_s=now - first
        )


class Serving:
    """Serves one generator. Every `Generate` gets exactly one end: done, broken or dropped."""

    def __init__(self, channel: Channel, generator: Generator) -> None:
        self._channel = channel
        self._generator = generator
        self._experts = generator if isinstance(generator, Balanced) else None
        self._inbox: Inbox = queue.SimpleQueue()
        self._open: dict[str, _Open] = {}

    def admit(self, message: Generate) -> None:
        """Prepare a prompt; called on the reader's thread, beside the computing."""
        try:
            tokens = self._generator.prepare(_prompt(message), message.sampling)
        except Refused as refused:
            self._channel.send(broken(message.task_id, refused.cause))
        except Exception as error:  # one bad prompt must not end the runner; its client is told
            traceback.print_exc()
            self._channel.send(broken(message.task_id, _unexpected("invalid_prompt", error)))
        else:
            self._channel.send(Admitted(task_id=message.task_id, prompt_tokens=len(tokens)))
            self._inbox.put(Admission(message.task_id, tokens, message.sampling, time.perf_counter()))

    def cancel(self, message: Cancel) -> None:
        """Drop a task before the next step."""
        self._inbox.put(message)

    def move(self, message: Move) -> None:
        """Move experts before the next step, also where there is none."""
        self._inbox.put(message)

    def quit(self) -> None:
        """End `run`, from any thread."""
        self._inbox.put(Quit())

    def run(self) -> None:
        """Step the engine until `quit`.

        Raises `StepFailed` after telling every open task, `GroupLost` as the engine does.
        """
        while self._take():
            if self._generator.busy:
                self._step()
        for task_id, task in self._open.items():
            self._channel.send(TaskDropped(task_id=task_id, usage=task.usage()))

    def _take(self) -> bool:
        """Handle what waits; wait for something where there is nothing to compute. False to end."""
        while not (self._generator.busy and self._inbox.empty()):
            message = self._inbox.get()
            if isinstance(message, Quit):
                return False
            if isinstance(message, Cancel):
                self._drop(message.task_id)
            elif isinstance(message, Admission):
                self._submit(message)
            else:
                self._guarded(lambda message=message: self._move(message))
        return True

    def _submit(self, admission: Admission) -> None:
        task = _Open(len(admission.tokens), admission.at)
        try:
            self._generator.submit(admission.task_id, admission.tokens, admission.sampling)
        except Refused as refused:
            self._channel.send(broken(admission.task_id, refused.cause, task.usage()))
        except GroupLost:
            raise
        except Exception as error:  # as in admit: this task's own trouble
            traceback.print_exc()
            self._channel.send(
                broken(admission.task_id, _unexpected("generation_error", error), task.usage())
            )
        else:
            self._open[admission.task_id] = task

    def _drop(self, task_id: str) -> None:
        if self._generator.cancel(task_id):
            self._channel.send(TaskDropped(task_id=task_id, usage=self._open.pop(task_id).usage()))

    def _step(self) -> None:
        began = time.perf_counter()
        steps = self._guarded(self._generator.step)
        now = time.perf_counter()
        chunks: list[Chunk] = []
        prefilling: list[str] = []
        decoding: list[str] = []
        ends: list[FromRunner] = []
        for step in steps:
            task = self._open[step.task_id]
            if step.n_tokens:
                decoding.append(step.task_id)
                task.first_token = task.first_token or now
                task.drawn += step.n_tokens
            else:
                prefilling.append(step.task_id)
                task.started = task.started or began
            if step.text or step.tokens:
                chunks.append(_chunk(step))
            if step.finish or step.failure:
                ends.append(self._end(step, now))
        self._channel.send(Progress(chunks=chunks, prefilling=prefilling, decoding=decoding))
        for end in ends:
            self._channel.send(end)
        self._tell_load()

    def _tell_load(self) -> None:
        while self._experts and (window := self._experts.take_window()):
            self._channel.send(
                ExpertLoad(
                    window=window.window,
                    epoch=window.epoch,
                    steps=window.steps,
                    tokens=window.tokens,
                    seconds=window.seconds,
                    bandwidth=window.bandwidth,
                    counts=window.counts,
                )
            )

    def _move(self, message: Move) -> None:
        if self._experts is None:
            raise RuntimeError("told to move experts of a model that was loaded without a load balancer")
        if isinstance(message, StageLayer):
            self._channel.send(_staged(self._experts, message))
        elif isinstance(message, ApplyLayer):
            began = time.perf_counter()
            digests = self._experts.apply(message.layer, message.epoch, message.map)
            seconds = time.perf_counter() - began
            self._channel.send(
                LayerApplied(
                    migration_id=message.migration_id, layer=message.layer, digests=digests, seconds=seconds
                )
            )
        else:
            self._experts.drop()

    def _end(self, step: Step, now: float) -> FromRunner:
        task = self._open.pop(step.task_id)
        if step.finish is None:
            cause = step.failure or Cause(code="generation_error", message="The answer broke.")
            return broken(step.task_id, cause, task.usage())
        return TaskDone(
            task_id=step.task_id,
            finish_reason=step.finish,
            usage=task.usage(),
            timings=task.timings(now),
        )

    def _guarded(self, work: Callable[[], T]) -> T:
        """``work()`` of the engine. Raises `GroupLost` as it does, and `StepFailed` for whatever else."""
        try:
            return work()
        except (GroupLost, ChannelClosed):
            raise
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> NoReturn:
        traceback.print_exc()
        cause = _unexpected("engine_error", error)
        for task_id, task in self._open.items():
            self._channel.send(broken(task_id, cause, task.usage()))
        raise StepFailed(cause) from error


def _staged(experts: Balanced, message: StageLayer) -> LayerStaged:
    layer = message.moves.layer
    try:
        done = experts.stage(message.moves)
    except MoveFailed as failure:
        return LayerStaged(migration_id=message.migration_id, layer=layer, cause=failure.cause)
    return LayerStaged(
        migration_id=message.migration_id,
        layer=layer,
        slots=done.slots,
        bytes=done.bytes,
        seconds=done.seconds,
    )


def broken(task_id: str, cause: Cause, usage: Usage | None = None) -> TaskBroken:
    """The end of a task that gets no answer."""
    return TaskBroken(task_id=task_id, cause=cause, usage=usage or NO_TOKENS)


def _unexpected(code: str, error: Exception) -> Cause:
    return Cause(code=code, message=f"{type(error).__name__}: {error}")


def _prompt(message: Generate) -> Prompt:
    return Prompt(
        kind=message.kind,
        messages=message.messages,
        tools=message.tools,
        text=message.text,
        tokens=message.tokens,
        template_options=message.template_options,
    )


def _chunk(step: Step) -> Chunk:
    return Chunk(step.task_id, step.text, step.tokens, [_logprob(entry) for entry in step.logprobs])


def _logprob(entry: TokenLogprob) -> Logprob:
    return Logprob(entry.token, entry.text, entry.raw, entry.logprob, list(entry.top))
