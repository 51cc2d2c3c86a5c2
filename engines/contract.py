"""The contract between a runner process and an engine: a builder that loads, a generator that computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from events.values import Cause, Dtype, EngineReport, FinishReason, ModelCard, Sampling, TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """What a runner is to load and how. Fixed for the runner's life."""

    card: ModelCard
    path: str
    dtype: Dtype
    context: int
    """Tokens that one sequence may hold, prompt and answer."""
    batch: int
    """Sequences decoded at the same time; 1 is no-batch mode."""
    start_layer: int
    end_layer: int
    prefill_chunk: int
    """Prompt tokens computed between two decode steps of the running streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What to continue: chat ``messages`` (OpenAI form, plain dicts), or ``text``, or ``tokens``."""

    kind: TaskKind
    messages: Sequence[dict[str, object]] = ()
    tools: Sequence[dict[str, object]] = ()
    text: str = ""
    tokens: Sequence[int] = ()
    template_options: dict[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One drawn token with its log probability, and the likeliest ones at its place."""

    token: int
    text: str
    """The token's own text; bytes that are not whole UTF-8 are shown as U+FFFD."""
    raw: bytes
    logprob: float
    top: Sequence[tuple[int, str, bytes, float]] = ()


@dataclass(slots=True, kw_only=True)
class Step:
    """What one engine step gave one task.

    ``text`` is safe to show: whole UTF-8, and no part of what may yet become a stop string. ``tokens`` are
    those of the shown text. ``n_tokens`` were drawn in this step, counting those that are not shown: the
    end-of-sequence token, a stop string's. ``finish`` is set exactly once, at the end; ``failure`` instead
    where the task broke (only this task, never its neighbours).
    """

    task_id: str
    text: str = ""
    n_tokens: int = 0
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prefill_done: int = 0
    """Prompt tokens computed so far; grows during prefill, so that a watcher sees progress."""
    finish: FinishReason | None = None
    failure: Cause | None = None


class Refused(Exception):
    """A prompt or sampler that can't be served. Carries the cause for the client; nothing is broken.

    Codes: ``invalid_prompt`` (template error, no messages, empty prompt), ``context_length_exceeded``
    (detail: prompt_tokens, max_tokens, context), ``invalid_sampling``.
    """

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class Generator(Protocol):
    """A loaded model with continuous batching. Used from one thread, apart from `prepare`."""

    def prepare(self, prompt: Prompt, sampling: Sampling) -> Sequence[int]:
        """Template and tokenize; check the length against the context. Thread-safe and cheap.

        Raises `Refused`. A ``sampling.max_tokens`` of 0 asks for all the room there is.
        """
        ...

    def submit(self, task_id: str, tokens: Sequence[int], sampling: Sampling) -> None:
        """Queue a prepared prompt. More than ``batch`` tasks wait their turn in order. Raises `Refused`."""
        ...

    def step(self) -> list[Step]:
        """One decode step of every running task and at most one prefill chunk. Empty where idle."""
        ...

    def cancel(self, task_id: str) -> bool:
        """Drop a task and its cache before the next step. False where it is not (any more) here."""
        ...

    @property
    def busy(self) -> bool:
        """True while a task is queued or running."""
        ...


class Builder(Protocol):
    """Loads one shard of one model in a runner process."""

    def connect(self) -> None:
        """Join the group of ranks; nothing to do for a world of one."""
        ...

    def load(self, progress: Callable[[int, int], None]) -> list[str]:
        """Read the weights, calling ``progress(layers, total)``. Returns notes on what was corrected.

        Raises `LoadError` where the files would be read wrongly or do not fit the machine.
        """
        ...

    def warm_up(self) -> Generator:
        """A first prefill and decode; returns the generator."""
        ...


class LoadError(Exception):
    """The model can't be loaded as it is; carries the cause with what to do."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class Engine(Protocol):
    """One kind of engine, known by name."""

    name: str

    def self_test(self) -> EngineReport:
        """Compute something small and check it. Never raises: ``ok`` false carries the reason."""
        ...

    def environment(self, threads: int) -> dict[str, str]:
        """Environment variables for a runner process of this engine, set before it starts."""
        ...

    def builder(self, spec: LoadSpec) -> Builder:
        """A builder for one shard."""
        ...
