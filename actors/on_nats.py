"""How a node takes part in a cluster on NATS, from its settings. Needs nats-py, once `check` is passed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from actors.ordering.interface import Member
from actors.refusal import StartFailed
from actors.replica import Paths
from actors.settings import Settings
from events.feed import CommitFeed
from events.values import Cause

if TYPE_CHECKING:
    from actors.net.doctor import Finding
    from actors.net.nats import Nats, NatsSettings
    from actors.streamed_journal import StreamedJournal

_OF_THE_MESH = (
    "cluster_secret",
    "cluster_authority",
    "cluster_certificate",
    "cluster_key",
    "cluster_peers",
    "cluster_port",
    "cluster_multicast",
)

START_TIMEOUT_S = 90.0
"""Seconds that the journal may take to start: servers that have just started need some to agree."""


def check(settings: Settings) -> None:
    """Raises `StartFailed` for settings that can't work on NATS."""
    if not settings.cluster:
        raise _refusal("cluster_nats needs the cluster's name: set cluster, alike on all nodes.")
    strange = [name for name in _OF_THE_MESH if getattr(settings, name) != getattr(Settings(), name)]
    if strange:
        raise _refusal(
            f"{', '.join(strange)} can't be set with cluster_nats: NATS carries what the nodes say, and "
            "secures it. User, password and TLS go into its addresses, as tls://user:password@host:4222."
        )
    if find_spec("nats") is None:
        raise _refusal("cluster_nats needs nats-py: pip install 'cuebook[nats]'.")


def transport(settings: Settings) -> Nats:
    """What carries messages between the nodes."""
    from actors.net.nats import Nats

    return Nats(_nats(settings))


def journal(me: Member, paths: Paths, feed: CommitFeed, settings: Settings) -> StreamedJournal:
    """The journal of a log that JetStream orders."""
    from actors.jetstream.client import JetStream
    from actors.streamed_journal import StreamedJournal

    return StreamedJournal(me, paths, feed, lambda: JetStream(_nats(settings)))


def host(settings: Settings) -> str:
    """The machine's address on the way to NATS, where other nodes are thought to find it as well."""
    from actors.net.nats import address_towards

    return address_towards(_nats(settings).servers[0]) or "127.0.0.1"


def look(settings: Settings) -> list[Finding]:
    """What can be said of the way to the NATS servers. Raises `StartFailed` as `check` does."""
    from actors.net.nats_doctor import diagnose

    check(settings)
    return diagnose(_nats(settings))


def _nats(settings: Settings) -> NatsSettings:
    from actors.net.nats import NatsSettings

    servers = tuple(each.strip() for each in settings.cluster_nats.split(",") if each.strip())
    return NatsSettings(servers=servers, cluster=settings.cluster)


def _refusal(message: str) -> StartFailed:
    return StartFailed(Cause(code="start_failed", message=message))
