"""A loaded MLX model with continuous batching: mlx-lm's batch generator behind the engine contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.answer import Answer, Shown
from engines.contract import LoadSpec, Prompt, Step, TokenLogprob
from engines.mlx import sampling as samplers
from engines.mlx.library import Batch, HubTokenizer, TokenResponse
from engines.mlx.logprobs import LogprobReader
from engines.mlx.prompts import Prompts
from engines.text import Vocabulary
from events.values import Cause, FinishReason, Sampling


@dataclass(slots=True)
class _Task:
    task_id: str
    answer: Answer
    sampler: samplers.Sampler
    logprobs: int


class MlxGenerator:
    """Implements `engines.contract.Generator`.

    One prompt is prefilled at a time, ``spec.prefill_chunk`` tokens between two decode steps. ``batch``
    computes for one rank or leads several.
    """

    def __init__(self, batch: Batch, tokenizer: HubTokenizer, spec: LoadSpec) -> None:
        self._context = spec.context
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
            task_id, Answer(self._vocabulary, sampling.stop), samplers.sampler(sampling), sampling.logprobs
        )
        room = sampling.max_tokens or self._context - len(tokens)
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
        if isinstance(task.sampler, samplers.SeededSampler) and task.sampler.error:
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
        return self._logprobs.read(response.token, response.logprobs, task.logprobs)


def _ended(answer: Answer) -> FinishReason:
    return "stop" if answer.stopped else "length"


def _show(step: Step, shown: Shown) -> None:
    step.text += shown.text
    step.tokens += shown.tokens
    step.logprobs += shown.logprobs
