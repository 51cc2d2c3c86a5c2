"""The load of each rank in each layer, before and after an epoch of experts began: what the log saw."""

from __future__ import annotations

import msgspec

from events import expert_events as ev
from events.reader import LogReader
from projections.expert_words import balance_of
from projections.why import Unknown


class Panel(msgspec.Struct, frozen=True):
    """One load window. ``ranks[layer][rank]`` are the rows that each rank computed."""

    epoch: int
    window: int
    balance: float
    ranks: list[list[int]]

    def relative(self) -> list[list[float]]:
        """Each rank's load by the mean of its layer: 1.0 everywhere is perfect; 0 where a layer had none."""
        return [[load * len(layer) / (sum(layer) or 1) for load in layer] for layer in self.ranks]


class HeatMap(msgspec.Struct, frozen=True):
    """The last window before ``epoch`` and the first one of it; None where the log has none."""

    instance_id: str
    epoch: int
    before: Panel | None
    after: Panel | None


def heat_map(reader: LogReader, instance_id: str, epoch: int | None = None) -> HeatMap:
    """The loads around the beginning of ``epoch``, by default that of the last window.

    Raises `Unknown` where the log has no load window of the instance before or in that epoch.
    """
    first: dict[int, ev.LoadWindowClosed] = {}
    last: dict[int, ev.LoadWindowClosed] = {}  # of each epoch: all windows of a long log are too many to keep
    for each in reader.events(subject=instance_id, types=["LoadWindowClosed"]):
        if isinstance(each.event, ev.LoadWindowClosed):
            first.setdefault(each.event.epoch, each.event)
            last[each.event.epoch] = each.event
    if not last:
        raise Unknown(
            f"The log has no load windows of {instance_id!r}. An instance with a load balancer closes one "
            "every `window` steps; `cuebook replay timeline --type LoadWindowClosed` lists them."
        )
    epoch = max(last) if epoch is None else epoch
    earlier = [each for each in last if each < epoch]
    before = last[max(earlier)] if earlier else None
    after = first.get(epoch)
    if before is None and after is None:
        begun = ", ".join(str(each) for each in sorted(last))
        raise Unknown(f"{instance_id} has no load window up to epoch {epoch}; it has some of {begun}.")
    return HeatMap(instance_id, epoch, _panel(before), _panel(after))


def _panel(event: ev.LoadWindowClosed | None) -> Panel | None:
    return Panel(event.epoch, event.window, balance_of(event.ranks), event.ranks) if event else None
