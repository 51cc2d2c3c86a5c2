"""A loaded model with continuous batching: an engine's batch behind the engine contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engines import sampling as samplers
from engines.answer import Answer, Shown
from engines.batching import Batch, Sampler, TokenResponse
from engines.contract import LoadError, LoadSpec, Prompt, Step, TokenLogprob
from engines.logprobs import LogprobReader
from engines.prompts import HubTokenizer, Prompts
from engines.text import Vocabulary
from events.values import Cause, FinishReason, Sampling

_WARM_UP_TOKENS = 3


class Drawing(Protocol):
    """What an engine does with the scores of its own kind."""

    def sampler(self, sampling: Sampling) -> Sampler:
        """The sampler of one request; a `engines.sampling.SeededDraw` where chance is in it."""
        ...

    def logprobs(self, row: Any) -> NDArray[np.float32]:
        """The log probabilities (vocabulary,) in `TokenResponse.logprobs`, before temperature."""
        ...


@dataclass(slots=True)
class _Task:
    task_id: str
    answer: Answer
    sampler: Sampler
    logprobs: int


class BatchedGenerator:
    """Implements `engines.contract.Generator`.

    One prompt is prefilled at a time, ``spec.prefill_chunk`` tokens between two decode steps. ``batch``
    computes for one rank or leads several.
    """

    def __init__(self, batch: Batch, tokenizer: HubTokenizer, spec: LoadSpec, drawing: Drawing) -> None:
        self._drawing = drawing
        self.context = spec.context
        """Tokens that one sequence may hold, prompt and answer."""
        self._prompts = Prompts(tokenizer, vocab_size=spec.card.vocab_size, context=spec.context)
        self._vocabulary = Vocabulary(tokenizer.backend_tokenizer)
        self._logprobs = LogprobReader(self._vocabulary)
        self._batch = batch
        self._tasks: dict[int, _Task] = {}
        self._uids: dict[str, int] = {}

    def prepare(self, prompt: Prompt, sampling: Sampling) -> Sequence[int]:
        """Tokens of the prompt. Raises `Refused`. Any thread."""
        samplers.check(sampling)
        return self._prompts.prepare(prompt, sampling)

    def submit(self, task_id: str, tokens: Sequence[int], sampling: Sampling) -> None:
        """Queue a prepared prompt."""
        if task_id in self._uids:
            raise ValueError(f"task {task_id} is already here")
        task = _Task(
            task_id,
            Answer(self._vocabulary, sampling.stop),
            self._drawing.sampler(sampling),
            sampling.logprobs,
        )
        room = sampling.max_tokens or self.context - len(tokens)
        (uid,) = self._batch.insert([list(tokens)], [room], samplers=[task.sampler])
        self._tasks[uid], self._uids[task_id] = task, uid

    def step(self) -> list[Step]:
        """One decode step of every running task and at most one prefill chunk."""
        prompts, tokens = self._batch.next()
        steps = [Step(task_id=self._tasks[p.uid].task_id, prefill_done=p.progress[0]) for p in prompts]
        steps += [self._advance(self._tasks[response.uid], response) for response in tokens]
        return steps

    def cancel(self, task_id: str) -> bool:
        """Drop a task and its cache. False where it is not here."""
        uid = self._uids.pop(task_id, None)
        if uid is None:
            return False
        del self._tasks[uid]
        self._batch.remove([uid])
        return True

    @property
    def busy(self) -> bool:
        """True while a task is queued or running."""
        return bool(self._tasks)

    def _advance(self, task: _Task, response: TokenResponse) -> Step:
        step = Step(task_id=task.task_id, n_tokens=1)
        try:
            self._take(task, response, step)
        except Exception as error:  # this task's own text or sampler; its neighbours go on
            step.failure = Cause(
                code="generation_error", message=f"The answer broke: {type(error).__name__}: {error}."
            )
        if step.finish or step.failure:
            self.cancel(task.task_id)
        return step

    def _take(self, task: _Task, response: TokenResponse, step: Step) -> None:
        if isinstance(task.sampler, samplers.SeededDraw) and task.sampler.error:
            raise task.sampler.error
        if response.finish_reason == "stop":
            _show(step, task.answer.finish())
            step.finish = "stop"
            return
        _show(step, task.answer.add(response.token, self._logprob(task, response)))
        if task.answer.stopped:
            step.finish = "stop"
        elif response.finish_reason:
            _show(step, task.answer.finish())
            step.finish = _ended(task.answer)

    def _logprob(self, task: _Task, response: TokenResponse) -> TokenLogprob | None:
        if task.logprobs < 0:
            return None
        values = self._drawing.logprobs(response.logprobs)
        return self._logprobs.read(response.token, values, task.logprobs)


def warmed(generator: BatchedGenerator) -> BatchedGenerator:
    """Compute two short prompts side by side, so that every kernel is ready. Raises `LoadError`."""
    drawn = min(_WARM_UP_TOKENS, generator.context)
    sampling = Sampling(max_tokens=drawn, temperature=0.7, top_p=0.9, seed=0)
    for n in range(2):
        length = max(1, min(4 + n, generator.context - drawn))
        generator.submit(f"warm-up-{n}", [0] * length, sampling)
    while generator.busy:
        for step in generator.step():
            if step.failure:
                raise LoadError(step.failure)
    return generator


def _ended(answer: Answer) -> FinishReason:
    return "stop" if answer.stopped else "length"


def _show(step: Step, shown: Shown) -> None:
    step.text += shown.text
    step.tokens += shown.tokens
    step.logprobs += shown.logprobs
