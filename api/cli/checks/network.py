"""The way to the cluster's other nodes, looked at as a node would."""

from __future__ import annotations

from collections.abc import Iterator

from actors import on_nats
from actors.actor import StartFailed
from actors.membership import as_peer, id_of, mesh_settings
from actors.net.doctor import diagnose
from actors.net.transport import TransportError
from actors.settings import Settings
from api.cli.checks.finding import Finding, Level

_LEVELS: dict[str, Level] = {"ok": "ok", "note": "warn", "problem": "fail"}


def check(settings: Settings) -> Iterator[Finding]:
    """Findings on security, interfaces, multicast, the port, and each node that was heard of or is a peer;
    with ``cluster_nats`` on its servers.

    Takes some seconds, sends beacons and greets those nodes; one that refuses this node records it.
    """
    if not settings.cluster:
        advice = "Name the cluster with --cluster or CUEBOOK_CLUSTER, the same on all nodes."
        yield Finding("fail", "cluster", "no cluster is named, so a node stays alone", advice)
        return
    try:
        if settings.cluster_nats:
            found = on_nats.look(settings)
        else:
            found = diagnose(mesh_settings(settings), as_peer(settings, id_of(settings)))
    except (TransportError, StartFailed, OSError) as error:
        yield Finding("fail", "cluster", str(error))
        return
    for each in found:
        yield Finding(_LEVELS[each.level], each.topic, each.text)
