"""The subject of an epoch's messages, which tells the server which of them follow which."""

from __future__ import annotations

from actors.ordering.epochs import Epoch


def subject_of(root: str, epoch: Epoch) -> str:
    """Where an epoch's decisions are published."""
    return f"{root}.{epoch.n}.{epoch.node_id}.{epoch.incarnation}"


def epoch_of(subject: str) -> Epoch:
    """The epoch that published there. Raises `ValueError`."""
    n, node_id, incarnation = subject.rsplit(".", 3)[1:]
    return Epoch(int(n), node_id, incarnation)
