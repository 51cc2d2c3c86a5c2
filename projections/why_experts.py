"""Why an epoch of an instance's experts is as it is: load, verdict, migration, from the log alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from events import expert_events as ev
from events.base import Event
from events.experts import LayerMoves
from events.reader import LogReader
from events.record import Recorded
from projections.expert_words import moved_words
from projections.phrases import count, size
from projections.why import Story, Unknown, steps

_HOT_LAYERS, _HOT_EXPERTS = 3, 3
"""Layers of a window that its details tell of, the least balanced first, and experts of each."""

# Load windows are read where they are told of: there are many, and each is large.
_TYPES = [
    "ExpertsPlaced",
    "RebalanceDecided",
    "MigrationPlanned",
    "LayerStaged",
    "LayerCommitted",
    "LayerApplied",
    "MigrationAborted",
    "ExpertEpochSealed",
]


def split(entity_id: str) -> tuple[str, int] | None:
    """Instance and epoch out of ``INSTANCE@EPOCH``; None where it is something else."""
    instance_id, at, epoch = entity_id.rpartition("@")
    return (instance_id, int(epoch)) if at and epoch.isdecimal() and len(epoch) < 19 else None


def why_epoch(reader: LogReader, instance_id: str, epoch: int) -> Story:
    """The story of one epoch: the window that was weighed, the verdict, the migration, what came of it.

    Migrations that were to begin the epoch and ended before their first commit are told too; and the last
    decision to leave it as it is. Raises `Unknown`, with the epochs that there are.
    """
    recorded = list(reader.events(subject=instance_id, types=_TYPES))
    found = {each.seq: each for each in _of_epoch(reader, recorded, epoch)}
    if not found:
        raise Unknown(_unknown(recorded, instance_id, epoch))
    ranks = _ranks(recorded, max(found))
    links = steps(reader, dict(sorted(found.items())), lambda event: _details(event, ranks))
    return Story(f"{instance_id}@{epoch}", "epoch", list(links))


def _of_epoch(reader: LogReader, recorded: Sequence[Recorded], epoch: int) -> Iterator[Recorded]:
    migrations: set[str] = set()
    for each in recorded:
        event = each.event
        match event:
            case ev.ExpertsPlaced(epoch=begun) if begun == epoch:
                yield each
            case ev.MigrationPlanned(epoch=begun) if begun == epoch:
                migrations.add(event.migration_id)
                yield from _reasons(reader, recorded, each)
                yield each
            case _:
                if getattr(event, "migration_id", None) in migrations:
                    yield each
    yield from _left_alone(reader, recorded, epoch)


def _reasons(reader: LogReader, recorded: Sequence[Recorded], planned: Recorded) -> Iterator[Recorded]:
    """The decision that a migration was planned in, and the window that it weighed."""
    for index, each in enumerate(recorded):
        if each.decision_id == planned.decision_id and isinstance(each.event, ev.RebalanceDecided):
            yield from _window(reader, recorded[: index + 1], each.event)
            yield each


def _left_alone(reader: LogReader, recorded: Sequence[Recorded], epoch: int) -> Iterator[Recorded]:
    """The last decision to leave the placement as it is, with its window, where there was one."""
    for index in range(len(recorded) - 1, -1, -1):
        event = recorded[index].event
        if isinstance(event, ev.RebalanceDecided) and event.epoch == epoch and not event.adopted:
            yield from _window(reader, recorded[: index + 1], event)
            yield recorded[index]
            return


def _window(reader: LogReader, upto: Sequence[Recorded], decided: ev.RebalanceDecided) -> Iterator[Recorded]:
    """The window that a decision, the last ``upto`` there, weighed: it was closed after the one before."""
    *before, last = (each.seq for each in upto if isinstance(each.event, ev.RebalanceDecided))
    windows = reader.events(
        after=before[-1] if before else 0,
        upto=last,
        subject=decided.instance_id,
        types=["LoadWindowClosed"],
    )
    numbered = [each for each in windows if getattr(each.event, "window", 0) == decided.window]
    yield from numbered[-1:]


def _ranks(recorded: Sequence[Recorded], upto: int) -> int:
    placed = (each.event for each in recorded if each.seq <= upto)
    return [event.ranks for event in placed if isinstance(event, ev.ExpertsPlaced)][-1]


def _unknown(recorded: Sequence[Recorded], instance_id: str, epoch: int) -> str:
    begun = {
        each.event.epoch
        for each in recorded
        if isinstance(each.event, ev.ExpertsPlaced | ev.MigrationPlanned)
    }
    if not begun:
        return (
            f"The log has no epochs of experts of {instance_id!r}; only instances with a load balancer have "
            "some. `cuebook replay timeline --type ExpertsPlaced` lists them."
        )
    return f"{instance_id} has no epoch {epoch}; it has {', '.join(str(each) for each in sorted(begun))}."


def _details(event: Event, ranks: int) -> list[str]:
    match event:
        case ev.ExpertsPlaced():
            alike = sum(slots == event.maps[0] for slots in event.maps)
            return _as_ranks(event.maps[0], event.ranks) + _further(alike - 1, "like this one")
        case ev.LoadWindowClosed():
            return _hottest(event)
        case ev.RebalanceDecided(adopted=True):
            return [f"the busiest rank receives {size(event.bytes_busiest)}"]
        case ev.MigrationPlanned():
            return [_moves(layer) for layer in event.layers]
        case ev.LayerCommitted():
            return _as_ranks(event.map, ranks)
        case ev.MigrationAborted(cause=cause):
            return [f"{name}: {value}" for name, value in cause.detail.items()]
        case _:
            return []


def _moves(layer: LayerMoves) -> str:
    return f"layer {layer.layer}: {moved_words(layer)}"


def _as_ranks(slots: Sequence[int], ranks: int) -> list[str]:
    each = len(slots) // ranks
    return [
        f"rank {rank}: experts {', '.join(map(str, slots[rank * each : (rank + 1) * each]))}"
        for rank in range(ranks)
    ]


def _further(layers: int, how: str) -> list[str]:
    return [f"and {count(layers, 'layer')} {how}"] if layers > 0 else []


def _hottest(window: ev.LoadWindowClosed) -> list[str]:
    """The least balanced layers, each with its hottest rank and experts."""
    loads = [(max(ranks) * len(ranks) / (sum(ranks) or 1), layer) for layer, ranks in enumerate(window.ranks)]
    loads.sort(key=lambda each: (-each[0], each[1]))
    lines = [
        f"layer {layer}: rank {_most(window.ranks[layer])[0]} computed {times:.2f} times the mean; hottest "
        f"experts {_shares(window.experts[layer])}"
        for times, layer in loads[:_HOT_LAYERS]
    ]
    return lines + _further(len(loads) - len(lines), "with less")


def _most(loads: Sequence[int]) -> list[int]:
    """Positions by load, the largest first."""
    return sorted(range(len(loads)), key=lambda position: -loads[position])


def _shares(experts: Sequence[int]) -> str:
    total = sum(experts) or 1
    return ", ".join(f"{e} ({experts[e] / total:.0%} of the rows)" for e in _most(experts)[:_HOT_EXPERTS])
