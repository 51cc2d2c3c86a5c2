"""Instances: wanted by users, placed by the master, set back when a placement breaks."""

from __future__ import annotations

from actors.deciding.ends import end_service
from actors.deciding.first_maps import experts_placed
from actors.deciding.tasks import unknown_instance
from actors.placement import Preference, next_attempt, place
from actors.refusal import Rejected
from events import catalogue as ev
from events import commands as cmd
from events.base import Event
from events.commands import Facts
from events.ids import drawn
from events.values import Cause, Policy
from projections.state import ClusterState, Instance

QUIET_S = 60.0
"""Seconds of readiness after which a failure counts as the first again."""

FINAL_CODES = frozenset(
    {
        "config_conflict",
        "config_contradiction",
        "config_misread",
        "experts_refused",
        "invalid_settings",
        "model_files_broken",
        "model_not_servable",
        "weights_mismatch",
        "wrong_layers",
    }
)
"""Causes of the engines' refusals that another attempt with the same files can't heal: it fails at once."""


def place_instance(
    state: ClusterState, command: cmd.PlaceInstance, facts: Facts, prefer: Preference
) -> list[Event]:
    """Record the wish and its placement in one decision; reject what is unknown or fits nowhere."""
    model = state.models.get(command.model_id)
    if model is None:
        raise Rejected(unknown_model(state, command.model_id))
    choice = place(state, model, command.settings, seed=facts.seed, attempt=1, prefer=prefer)
    instance_id = drawn("instance", facts.seed)
    return [
        ev.InstanceRequested(instance_id=instance_id, model_id=command.model_id, settings=command.settings),
        *experts_placed(state, instance_id, model.card, choice.placement),
        ev.InstancePlaced(instance_id=instance_id, placement=choice.placement, candidates=choice.candidates),
    ]


def reconcile_instance(
    state: ClusterState, command: cmd.ReconcileInstance, facts: Facts, prefer: Preference
) -> list[Event]:
    """Place a waiting instance whose time has come; count it as a failed attempt where nothing fits."""
    instance = state.instances.get(command.instance_id)
    if instance is None or instance.status != "waiting" or instance.retry_at > facts.now:
        return []
    model = state.models[instance.model_id]
    attempt = next_attempt(instance)
    try:
        choice = place(
            state,
            model,
            instance.settings,
            seed=facts.seed,
            attempt=attempt,
            prefer=prefer,
            degrade=True,
        )
    except Rejected as refusal:
        return [set_back(instance, refusal.cause, facts.now, command.policy)]
    return [
        *experts_placed(state, instance.instance_id, model.card, choice.placement),
        ev.InstancePlaced(
            instance_id=instance.instance_id, placement=choice.placement, candidates=choice.candidates
        ),
    ]


def retry_instance(state: ClusterState, command: cmd.RetryInstance, facts: Facts) -> list[Event]:  # noqa: ARG001
    """Try an instance now that has failed or waits for its back-off."""
    instance = _known(state, command.instance_id)
    if instance.status in ("placed", "ready"):
        raise Rejected(
            Cause(
                code="not_failed",
                message=f"{instance.instance_id} is {instance.status}; there is nothing to retry.",
            )
        )
    return [ev.InstanceRetried(instance_id=instance.instance_id, by=command.by)]


def delete_instance(state: ClusterState, command: cmd.DeleteInstance, facts: Facts) -> list[Event]:  # noqa: ARG001
    """End what is open with it, then let it go; its runners are shut down by their workers."""
    instance = _known(state, command.instance_id)
    cause = Cause(code="instance_deleted", message=f"{instance.instance_id} was deleted by its user.")
    return [
        *end_service(state, instance.instance_id, cause),
        ev.InstanceDeleted(instance_id=instance.instance_id),
    ]


def set_back(instance: Instance, cause: Cause, now: float, policy: Policy) -> Event:
    """The event that voids a placement: tried again after a back-off, or failed when retries are used up.

    The back-off doubles from ``backoff_base_s`` to ``backoff_cap_s`` seconds. An instance that had been
    ready for `QUIET_S` starts counting anew.
    """
    quiet = instance.ready_at > 0 and now - instance.ready_at >= QUIET_S
    attempt = 1 if quiet else instance.attempts + 1
    if attempt > policy.max_instance_retries or cause.code in FINAL_CODES:
        return ev.InstanceFailed(instance_id=instance.instance_id, cause=cause, attempts=attempt)
    return ev.InstanceSetBack(
        instance_id=instance.instance_id,
        cause=cause,
        attempt=attempt,
        retry_at=now + backoff(attempt, policy),
    )


def backoff(attempt: int, policy: Policy) -> float:
    """Seconds to wait after the ``attempt``-th failure in a row, from 1."""
    return min(policy.backoff_cap_s, policy.backoff_base_s * 2.0 ** min(attempt - 1, 62))


def unknown_model(state: ClusterState, model_id: str) -> Cause:
    """The refusal of a model that nobody has described."""
    known = ", ".join(sorted(state.models)) or "none"
    return Cause(
        code="model_not_found",
        message=f"No model {model_id!r} is known here. Known models: {known}. Add one with "
        "`cuebook models add`, or give a Hugging Face repository id.",
    )


def _known(state: ClusterState, instance_id: str) -> Instance:
    instance = state.instances.get(instance_id)
    if instance is None:
        raise Rejected(unknown_instance(instance_id))
    return instance
