"""What a node proves itself with to the others of its cluster: whether it will be let in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from actors import on_nats
from actors.membership import id_of, mesh_settings
from actors.net.auth import security
from actors.net.transport import TransportError
from actors.refusal import StartFailed
from actors.settings import Settings
from api.cli.checks.finding import Finding

_SOON = timedelta(days=30)


def check(settings: Settings) -> Iterator[Finding]:
    """A finding on the secret, the certificate or the NATS settings; none where no cluster is named."""
    if not settings.cluster and not settings.cluster_nats:
        return
    try:
        if settings.cluster_nats:
            on_nats.check(settings)
            yield Finding("ok", "cluster", f"{settings.cluster}, on NATS")
            return
        node_id, mesh = id_of(settings), mesh_settings(settings)
        mesh.hosts()
        own = security(mesh.cluster, mesh.secret, mesh.certificates)
    except (TransportError, StartFailed, OSError) as error:
        yield Finding("fail", "cluster", str(error))
        return
    if own.until is None:
        how = "no secret, so only on this machine" if mesh.open else "by a secret"
        yield Finding("ok", "cluster", f"{mesh.cluster}, {how}")
        return
    text = f"{mesh.cluster}, by the certificate of {node_id}, good until {own.until:%Y-%m-%d}"
    if own.until - datetime.now(UTC) < _SOON:
        advice = "Have it renewed and start this node again: after that day no other node lets it in."
        yield Finding("warn", "cluster", text, advice)
    else:
        yield Finding("ok", "cluster", text)
