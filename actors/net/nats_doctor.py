"""Why a node doesn't join its cluster over NATS: each server asked by itself, and what that means."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import nats.errors
from msgspec import Struct

from actors.net.doctor import Finding
from actors.net.nats import NatsSettings, connect, without_password
from actors.net.transport import TransportError


class Server(Struct, frozen=True):
    """What was seen of a server. ``trouble`` is why it can't be used; empty where it can."""

    address: str
    trouble: str = ""
    version: str = ""
    round_trip_s: float = 0.0


def diagnose(settings: NatsSettings) -> list[Finding]:
    """Ask every server of ``settings``, at the same time; takes some seconds where one does not answer."""
    return list(findings(asyncio.run(_ask_all(settings))))


def findings(servers: list[Server]) -> Iterator[Finding]:
    """What the observations mean. Pure."""
    for server in servers:
        if server.trouble:
            yield Finding("nats", "problem", server.trouble)
        else:
            yield Finding(
                "nats",
                "ok",
                f"NATS {server.version} with JetStream answers at {server.address} in "
                f"{server.round_trip_s * 1000:.1f} ms.",
            )
    usable = sum(not server.trouble for server in servers)
    if servers and usable < 3:
        yield Finding(
            "nats",
            "note",
            f"{usable} of {len(servers)} named servers can be used. A log survives the death of a server "
            "where three keep it: name three servers of one NATS cluster.",
        )


async def _ask_all(settings: NatsSettings) -> list[Server]:
    return list(await asyncio.gather(*(_ask(settings, server) for server in settings.servers)))


async def _ask(settings: NatsSettings, server: str) -> Server:
    address = without_password(server)
    alone = NatsSettings(servers=(server,), cluster=settings.cluster)
    try:
        client = await connect(alone)
    except TransportError as error:
        return Server(address, str(error))
    try:
        began = time.monotonic()
        await client.flush()
        round_trip = time.monotonic() - began
        await client.jetstream().account_info()  # pyright: ignore[reportUnknownMemberType]
    except (nats.errors.Error, TimeoutError) as error:
        return Server(
            address,
            f"The NATS server at {address} gives no JetStream to this user "
            f"({str(error) or type(error).__name__}): start it with -js, and allow the user to use it.",
        )
    else:
        return Server(address, version=str(client.connected_server_version), round_trip_s=round_trip)
    finally:
        await client.close()
