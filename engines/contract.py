"""The contract between a runner process and an engine: a builder that loads, a generator that computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from events.base import Value
from events.experts import EplbSettings, ExpertDispatch, ExpertFormat, LayerMoves, StagedSlot
from events.values import Cause, Device, Dtype, EngineReport, FinishReason, ModelCard, Sampling, TaskKind

Strategy = Literal["pipeline", "tensor", "expert"]
"""How ranks share a model: each some layers, or a part of every layer, or some experts of every layer."""
Backend = Literal["ring", "jaccl"]
"""What carries the collectives of MLX: TCP between neighbours, or RDMA."""


class GroupSpec(Value, frozen=True, kw_only=True):
    """The group of ranks that a runner is to join, and its place in it."""

    group_id: str
    """Known to the ranks of this group alone; who does not name it is turned away."""
    rank: int
    hosts: list[str]
    """IPv4 address and port ("10.0.0.2:40123") of each rank, by rank. The port must be free."""
    strategy: Strategy
    backend: Backend = "ring"
    rdma_devices: list[list[str | None]] = []
    """JACCL only: ``[i][j]`` names the RDMA device by which rank i reaches rank j; None for itself."""
    timeout_s: float
    """Seconds that the ranks may take to meet."""
    device_id: str = "cpu:0"
    """Of this rank: on torch it decides what carries the collectives."""


class ExpertShard(Value, frozen=True, kw_only=True):
    """How the experts of a model are spread over the ranks of a group; ``slots`` is P, those of a layer."""

    dispatch: ExpertDispatch
    format: ExpertFormat
    slots: int
    eplb: EplbSettings | None = None
    epoch: int = 0
    maps: list[list[int]] = []
    """With EPLB: the logical expert in each slot of each MoE layer, as the log has it."""


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
    device_id: str = "cpu:0"
    """The device to compute on. MLX takes the only one that it has."""
    experts: ExpertShard | None = None
    """With the strategy ``expert`` only."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWindow:
    """What the ranks computed in a window of steps; the fields are those of `events.expert_commands`."""

    window: int
    epoch: int
    steps: int
    tokens: int
    seconds: float
    bandwidth: float
    counts: list[list[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A layer's rows are in the staging buffers of all ranks; ``bytes`` went over the wire."""

    slots: list[StagedSlot]
    bytes: int
    seconds: float


@runtime_checkable
class Balanced(Protocol):
    """A generator, on rank 0, whose experts can move. Its methods are called between two steps."""

    def stage(self, moves: LayerMoves) -> Staged:
        """Receive the new rows of a layer on every rank, beside the live ones, and checksum them.

        Raises `MoveFailed` where a rank could not; then no rank keeps anything.
        """
        ...

    def apply(self, layer: int, epoch: int, map: list[int]) -> list[str]:
        """Make what is staged live, on every rank: rows, lookup, epoch. The digests by rank."""
        ...

    def drop(self) -> None:
        """Forget what is staged, on every rank."""
        ...

    def take_window(self) -> LoadWindow | None:
        """The next load window that the last step closed; None after the last of them."""
        ...


class MoveFailed(Exception):
    """A layer could not be staged; nothing has changed. Carries the cause."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


@runtime_checkable
class Follower(Protocol):
    """A loaded shard on a rank that is not 0. It computes what rank 0 computes and talks to nobody else."""

    def follow(self) -> None:
        """Take part in every step of rank 0. Raises `GroupLost` after `stop`, or when a rank is gone."""
        ...

    def stop(self) -> None:
        """End `follow` before the next step. From any thread."""
        ...


class Group(Protocol):
    """The other ranks, as one engine reaches them."""

    rank: int


class GroupLost(Exception):
    """Another rank is gone, so that no collective can complete any more; carries the cause."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class Builder(Protocol):
    """Loads one shard of one model in a runner process."""

    def load(self, progress: Callable[[int, int], None]) -> list[str]:
        """Read the weights, calling ``progress(layers, total)``. Returns notes on what was corrected.

        Raises `LoadError` where the files would be read wrongly or do not fit the machine.
        """
        ...

    def warm_up(self) -> Generator | Follower:
        """A first prefill and decode, of all ranks together: a rank other than 0 waits in it for rank 0.

        Returns what serves: the generator on rank 0, followers on the others.
        """
        ...


class LoadError(Exception):
    """The model can't be loaded as it is; carries the cause with what to do."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class Tested(Value, frozen=True, kw_only=True):
    """What the self-test of an engine found. A node knows its CPU and Metal; of these devices, from here."""

    report: EngineReport
    devices: list[Device] = []
    """The accelerators in the report, with their names and memory."""


class Engine(Protocol):
    """One kind of engine, known by name."""

    name: str

    def installed(self) -> bool:
        """True where its packages are there, whatever they can do here. Imports none of them."""
        ...

    def self_test(self, *, measure: bool = False) -> Tested:
        """Compute something small and check it. Never raises: ``report.ok`` false carries the reason.

        With ``measure`` the report has a speed, which takes a second more.
        """
        ...

    def environment(self, threads: int) -> dict[str, str]:
        """Environment variables for a runner process of this engine, set before it starts."""
        ...

    def connect(self, spec: GroupSpec, lost: Callable[[Cause], None]) -> Group:
        """Meet the other ranks. Raises `LoadError` where they don't all come.

        ``lost`` is called, on a thread of its own, as soon as another rank's process is gone, whatever the
        main thread is in: a collective that waits for it never returns.
        """
        ...

    def builder(self, spec: LoadSpec, group: Group | None) -> Builder:
        """A builder for one shard; ``group`` is None for a world of one."""
        ...
