"""``system_fingerprint``: equal where equal seeds give equal answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from projections.state import ClusterState


def fingerprint(state: ClusterState, task_ids: Sequence[str]) -> str:
    """A digest of the model's files and of the engine, its version and options that compute these tasks.

    An empty sequence, or tasks that have ended already, give the fingerprint of an unknown engine.
    """
    task = next((state.tasks[task_id] for task_id in task_ids if task_id in state.tasks), None)
    instance = state.instances.get(task.instance_id) if task else None
    if instance is None or instance.placement is None:
        return "fp_unknown"
    placement = instance.placement
    source = state.models[instance.model_id].source
    reports = state.nodes[placement.ranks[0].node_id].engines
    used = [report for report in reports if report.engine == placement.engine]
    engines = sorted(f"{report.version} {sorted(report.options.items())}" for report in used)
    parts = (instance.model_id, source.revision, source.digest, placement.engine, placement.dtype, *engines)
    return f"fp_{hashlib.blake2b(chr(0).join(parts).encode(), digest_size=6).hexdigest()}"
