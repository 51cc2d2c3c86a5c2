"""What ends with a placement, whatever made it void: its tasks, and the migration of its experts."""

from __future__ import annotations

from actors.deciding.tasks import fail_open_tasks
from events.base import Event
from events.expert_events import MigrationAborted
from events.values import Cause
from projections.state import ClusterState


def end_service(state: ClusterState, instance_id: str, cause: Cause) -> list[Event]:
    """The ends of all open tasks of an instance and of its open migration. They go before its own end."""
    return [*fail_open_tasks(state, instance_id, cause), *abort(state, instance_id, cause)]


def abort(state: ClusterState, instance_id: str, cause: Cause) -> list[Event]:
    """The early end of an instance's migration, where it has one."""
    experts = state.experts.get(instance_id)
    migration = experts.migration if experts is not None else None
    if migration is None:
        return []
    return [
        MigrationAborted(
            instance_id=instance_id,
            migration_id=migration.migration_id,
            layer=migration.layers[migration.position].layer,
            stage=migration.stage,
            cause=cause,
        )
    ]
