"""Steps of the plan as orders to a runner."""

from __future__ import annotations

from actors import plan as p
from actors.settings import Settings
from engines import wire
from engines.contract import ExpertShard, GroupSpec, Prompt, Strategy
from events.values import Placement
from projections.state import Task

PREFILL_CHUNK = 1024
CPU_PREFILL_CHUNK = 128
"""A chunk is one computation that can't be cancelled: on a CPU, 128 tokens take what 1,024 take on a GPU."""


def connect(step: p.ConnectRunner, settings: Settings) -> wire.Connect:
    """Join the ranks of the group."""
    placement, rank = step.placement, step.rank
    group = GroupSpec(
        group_id=placement.ranks[0].runner_id,
        rank=rank.rank,
        hosts=step.hosts,
        strategy=_strategy(placement),
        timeout_s=settings.connect_timeout_s,
        device_id=rank.device_id,
    )
    return wire.Connect(engine=placement.engine, group=group)


def _strategy(placement: Placement) -> Strategy:
    return "pipeline" if placement.strategy == "auto" else placement.strategy


def load(step: p.LoadModel, settings: Settings, path: str) -> wire.Load:
    """Load the rank's shard from the model's files at ``path``."""
    placement, rank = step.placement, step.rank
    return wire.Load(
        card=step.model.card,
        path=path,
        engine=placement.engine,
        dtype=placement.dtype,
        context=placement.context,
        batch=1 if settings.no_batch else placement.batch,
        start_layer=rank.start_layer,
        end_layer=rank.end_layer,
        prefill_chunk=settings.prefill_chunk or _prefill_chunk(rank.device_id),
        device_id=rank.device_id,
        experts=_shard(step),
    )


def _shard(step: p.LoadModel) -> ExpertShard | None:
    placement, card = step.placement, step.model.card
    if placement.strategy != "expert":
        return None
    eplb = placement.eplb
    return ExpertShard(
        dispatch=placement.expert_dispatch,
        format=placement.expert_format,
        slots=card.n_experts + (eplb.redundant_experts if eplb else 0),
        eplb=eplb,
        epoch=step.experts.epoch if step.experts else 0,
        maps=step.experts.maps if step.experts else [],
    )


def _prefill_chunk(device_id: str) -> int:
    """Prompt tokens between two decode steps: a pause of half a second or so for the running streams."""
    return CPU_PREFILL_CHUNK if device_id.startswith("cpu") else PREFILL_CHUNK


def move(
    step: p.StageExperts | p.ApplyExperts | p.DropStaging,
) -> wire.StageLayer | wire.ApplyLayer | wire.DropStaging:
    """Stage a layer's new experts, compute by its committed map, or forget what is staged."""
    match step:
        case p.StageExperts():
            return wire.StageLayer(migration_id=step.migration_id, moves=step.moves)
        case p.ApplyExperts():
            layer, new = step.moves.layer, step.moves.map
            return wire.ApplyLayer(migration_id=step.migration_id, layer=layer, epoch=step.epoch, map=new)
        case p.DropStaging():
            return wire.DropStaging(migration_id=step.migration_id)


def generate(task: Task, prompt: Prompt) -> wire.Generate:
    """Compute a task's answer."""
    return wire.Generate(
        task_id=task.task_id,
        kind=task.kind,
        sampling=task.sampling,
        messages=list(prompt.messages),
        tools=list(prompt.tools),
        text=prompt.text,
        tokens=list(prompt.tokens),
        template_options=prompt.template_options,
    )
