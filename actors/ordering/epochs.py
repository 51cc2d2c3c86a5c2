"""Epochs, and the run map that says which of them wrote which part of a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Epoch(NamedTuple):
    """The term of one master. Greater is later; none is ever used twice.

    ``n`` is the log's ``epoch``: promised on the master's disk before it is used, and greater than any
    promise that it has heard of. Two sides of a partition may come to the same ``n``, so the node and the
    incarnation of its process are part of the identity.
    """

    n: int
    node_id: str
    incarnation: str


NO_EPOCH = Epoch(0, "", "")
"""Before all others: that of an empty log."""


class Run(NamedTuple):
    """The entries ``first`` to ``last`` (indexes, from 1, both included) that one epoch gave a log."""

    epoch: Epoch
    first: int
    last: int


def fork_point(ours: Sequence[Run], theirs: Sequence[Run]) -> int:
    """The last index at which two logs are the same; 0 where they have nothing in common.

    An epoch's master only appends, so an entry is known by its epoch and index, and with it all that went
    before: the logs part where the shorter run of their last common epoch ends. Source: Kafka's leader
    epochs (KIP-101, KIP-279).
    """
    lasts = {run.epoch: run.last for run in ours}
    for run in reversed(theirs):
        if run.epoch in lasts:
            return min(run.last, lasts[run.epoch])
    return 0
