"""Values that events, commands, state and engines share: models, devices, placements, tasks, causes."""

from __future__ import annotations

from typing import Literal

import msgspec

from events.base import Value
from events.experts import EplbSettings, ExpertDispatch, ExpertFormat

Dtype = Literal["float32", "bfloat16", "float16"]
ShardStrategy = Literal["auto", "pipeline", "tensor", "expert"]
TaskKind = Literal["chat", "completion"]
FinishReason = Literal["stop", "length"]


class Cause(Value, frozen=True):
    """Why something failed or was refused: a stable ``code`` for programs, a sentence for people."""

    code: str
    message: str
    detail: dict[str, str | int | float] = {}


class Policy(Value, frozen=True):
    """The settings that decisions depend on. Recorded with each command that they can change."""

    max_instance_retries: int = 10
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 10.0


class Device(Value, frozen=True):
    """One device of a node that can carry a rank, such as ``cpu:0``, ``metal:0`` or ``cuda:3``."""

    device_id: str
    kind: Literal["cpu", "metal", "cuda", "npu"]
    name: str
    memory_bytes: int
    memory_free: int | None = None
    """Of a device with memory of its own, what was free when its node started; None where not known."""


class EngineReport(Value, frozen=True):
    """What an engine's self-test found on a node. Only engines with ``ok`` get instances.

    ``dtype`` is the one that the engine computes best in on this machine; ``options`` records choices
    that change speed or the last bits, such as the BLAS library.
    """

    engine: str
    version: str
    ok: bool
    detail: str
    device_ids: list[str]
    dtype: Dtype
    options: dict[str, str] = {}
    strategies: list[ShardStrategy] = msgspec.field(default_factory=lambda: ["pipeline", "tensor"])
    """Ways in which the engine can spread a model over several ranks."""
    speed: float = 0.0
    """Tokens per second of the work in `engines.speed`, the same for every engine; 0 where not measured."""


class Quantization(Value, frozen=True):
    """Weight quantization as config.json states it."""

    bits: int
    group_size: int


class ModelCard(Value, frozen=True):
    """What placement and engines need to know of a model, derived from its config.json."""

    model_id: str
    model_type: str
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    dtype: Dtype
    n_params: int
    weight_bytes: int
    """Bytes of the weight files; in memory they may take more, see `actors.placement`."""
    quantization: Quantization | None = None
    n_experts: int = 0
    """Routed experts of a mixture-of-experts (MoE) layer."""
    n_moe_layers: int = 0
    """Layers that have them; 0 where the model has none, or is of a family whose experts can't be spread."""
    expert_groups: int = 1
    """Groups of consecutive experts; the router restricts each token to some of them. 1 where it does not."""
    ffn_size: int = 0
    """Width of a feed-forward layer, of one expert where there are experts; 0 where it is not known."""
    window: int = 0
    """Tokens that its layers, or some of them, attend within (a sliding window); 0 where they see all."""
    other_layers: list[str] = []
    """Kinds of its layers that keep no keys and values for each token, such as ``linear_attention``."""
    has_chat_template: bool = True


class ModelSource(Value, frozen=True):
    """Where a model's files come from.

    ``directory``: ``location`` is a path on the node. ``hub``: a Hugging Face repository, ``revision`` a
    commit, branch or tag. ``package``: a distribution on the Python package index that carries a GGUF
    file, ``revision`` its version and ``digest`` the file's sha256.
    """

    kind: Literal["directory", "hub", "package"]
    location: str
    revision: str = ""
    digest: str = ""


class PlacementSettings(Value, frozen=True):
    """What the user wants of a placement. Empty strings and zeros mean: choose for me."""

    shard_strategy: ShardStrategy = "auto"
    context: int = 0
    """Tokens that one sequence may hold, prompt and answer; 0 takes the model's own, at most 8192."""
    batch: int = 8
    """Sequences decoded at the same time; memory for all their KV caches is reserved."""
    engine: str = ""
    dtype: Dtype | Literal[""] = ""
    node_id: str = ""
    device_id: str = ""
    ranks: int = 0
    """Devices to spread over; 0 takes the fewest that can hold the model, or more that are clearly faster."""
    expert_dispatch: ExpertDispatch = "shared"
    expert_format: ExpertFormat = "plain"
    eplb: EplbSettings | None = None
    """Balance the load of experts over the ranks; None leaves each expert where it is."""


class Rank(Value, frozen=True):
    """One rank of a placement: a runner on a device with the layers ``[start_layer, end_layer)``."""

    rank: int
    runner_id: str
    node_id: str
    device_id: str
    start_layer: int
    end_layer: int
    reserved_bytes: int


class Placement(Value, frozen=True):
    """Where and how an instance runs. ``attempt`` counts placements since the last success, from 1."""

    attempt: int
    engine: str
    dtype: Dtype
    strategy: ShardStrategy
    context: int
    batch: int
    ranks: list[Rank]
    note: str = ""
    """What is less than was asked for, such as fewer ranks because nodes are gone, and where more nodes might
    have been faster the predictions that decided; empty where there is neither."""
    expert_dispatch: ExpertDispatch = "shared"
    expert_format: ExpertFormat = "plain"
    eplb: EplbSettings | None = None
    """The last three with the strategy ``expert`` only."""


class Candidate(Value, frozen=True):
    """A device that was considered, with the numbers and the verdict that the decision rests on."""

    node_id: str
    device_id: str
    engine: str
    dtype: Dtype
    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int
    needed_bytes: int
    free_bytes: int
    has_files: bool
    verdict: Literal["chosen", "fits", "refused"]
    reasons: list[str]


class Sampling(Value, frozen=True):
    """How tokens are drawn. ``seed`` is always set: drawn by the decider where the client gave none."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: list[str] = []
    logprobs: int = -1
    """-1: none wanted; 0: of the drawn token only; k: also of the k likeliest tokens."""


class LinkReading(Value, frozen=True):
    """The way to another node as measured: seconds for a round trip, bytes per second."""

    node_id: str
    latency_s: float
    bandwidth: float


class Usage(Value, frozen=True):
    """Tokens of a finished task."""

    prompt_tokens: int
    completion_tokens: int


NO_TOKENS = Usage(prompt_tokens=0, completion_tokens=0)
"""Of a task that ended before it had any."""


class Timings(Value, frozen=True):
    """Seconds of a finished task: waiting in the runner, prefill, decode."""

    queued_s: float
    prefill_s: float
    decode_s: float


class Diagnostics(Value, frozen=True):
    """What is known of a runner's end. ``signal`` is a name such as ``SIGKILL``, empty where none."""

    exit_code: int | None = None
    signal: str = ""
    stderr_tail: list[str] = []
