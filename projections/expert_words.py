"""Every event of expert placement as a sentence for people; a part of `projections.words`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

from events import expert_events as ev
from events.base import Event
from events.experts import Balance, LayerMoves
from projections.phrases import count, milliseconds, reason, size


def balance_of(ranks: Sequence[Sequence[int]]) -> float:
    """Mean by hottest of a load ``[layer][rank]``, each summed over the layers; 1 where there is none."""
    hottest = sum(max(layer) for layer in ranks)
    return sum(sum(layer) / len(layer) for layer in ranks) / hottest if hottest else 1.0


def moved_words(moves: LayerMoves) -> str:
    """The moves of a layer, e.g. ``expert 3 from slot 0 to slot 5``."""
    return "; ".join(f"expert {m.expert} from slot {m.source} to slot {m.slot}" for m in moves.moves)


@singledispatch
def sentence(event: Event) -> str:
    """As `projections.words.sentence`."""
    raise TypeError(f"{type(event).__name__} has no words; add them to projections.expert_words")


@sentence.register
def _(event: ev.ExpertsPlaced) -> str:
    slots = len(event.maps[0])
    return (
        f"The {count(event.experts, 'expert')} of each of {count(len(event.maps), 'layer')} of "
        f"{event.instance_id} were placed in {count(slots, 'slot')} on {count(event.ranks, 'rank')}, epoch "
        f"{event.epoch}: {event.reason}"
    )


@sentence.register
def _(event: ev.LoadWindowClosed) -> str:
    phase = "" if event.phase == "all" else f" of {event.phase}"
    return (
        f"{event.instance_id} closed load window {event.window}: {count(event.tokens, 'token')} in "
        f"{count(event.steps, 'step')}{phase} and {event.seconds:.2f} s, balance "
        f"{balance_of(event.ranks):.3f} in epoch {event.epoch}"
    )


@sentence.register
def _(event: ev.LoadWindowRefused) -> str:
    return f"Load window {event.window} of {event.instance_id} was refused: {reason(event.cause)}"


@sentence.register
def _(event: ev.RebalanceDecided) -> str:
    verdict = "was adopted" if event.adopted else "was left"
    return (
        f"A rebalance of {event.instance_id} after window {event.window} by the policy {event.policy} "
        f"{verdict}, balance {_balance(event.balance)}, {_moves(event)}: {event.reason.rstrip('.')}"
    )


def _balance(balance: Balance) -> str:
    return f"{balance.now:.3f} now, {balance.predicted:.3f} predicted, {balance.bound:.3f} at best"


def _moves(event: ev.RebalanceDecided) -> str:
    if not event.moves:
        return "no expert to receive"
    experts, layers = count(event.moves, "expert"), count(event.layers, "layer")
    return f"{experts} of {layers} to receive ({size(event.bytes_total)})"


@sentence.register
def _(event: ev.MigrationPlanned) -> str:
    slots = sum(len(layer.moves) for layer in event.layers)
    layers = ", ".join(str(layer.layer) for layer in event.layers)
    where = f"layer{'' if len(event.layers) == 1 else 's'} {layers}"
    return (
        f"{event.migration_id} of {event.instance_id} is to fill {count(slots, 'slot')} of {where} with "
        f"other experts, for epoch {event.epoch}"
    )


@sentence.register
def _(event: ev.LayerStaged) -> str:
    return (
        f"All ranks of {event.instance_id} hold {count(event.slots, 'new slot')} of layer {event.layer} "
        f"beside the live ones, {size(event.bytes)} in {milliseconds(event.seconds)}, with equal checksums"
    )


@sentence.register
def _(event: ev.LayerCommitted) -> str:
    return (
        f"The new map of layer {event.layer} of {event.instance_id} holds from here on, epoch {event.epoch}"
    )


@sentence.register
def _(event: ev.LayerApplied) -> str:
    return (
        f"All ranks of {event.instance_id} compute layer {event.layer} by its new map, after a pause of "
        f"{milliseconds(event.seconds)}"
    )


@sentence.register
def _(event: ev.MigrationAborted) -> str:
    where = {"staging": "before layer {} was committed", "committed": "with layer {} committed"}[event.stage]
    return (
        f"{event.migration_id} of {event.instance_id} ended early, {where.format(event.layer)}: "
        f"{reason(event.cause)}"
    )


@sentence.register
def _(event: ev.ExpertEpochSealed) -> str:
    return f"Epoch {event.epoch} of the experts of {event.instance_id} is complete on all ranks"
