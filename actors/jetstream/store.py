"""What a cluster keeps in JetStream: the stream that is its log, and the bucket with the lease."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, BucketNotFoundError, NotFoundError, ServiceUnavailableError
from nats.js.kv import KeyValue

from actors.net.greeting import tag_of
from actors.net.transport import TransportError

logger = logging.getLogger("cuebook.jetstream")

T = TypeVar("T")

FORMAT = 1
"""Of what is in the stream; another one is refused."""
LEASE_S = 3.0
"""Time to live of the lease: so long its holder may be dead before another leads."""
REPLICAS = 3

UNREACHABLE = (nats.errors.Error, OSError, TimeoutError)
"""What asking JetStream raises, whether it refuses or can't be reached."""

_PATIENCE_S = 20.0  # for servers that have just started and have yet to agree on a leader
_NOBODY_S = 3.0  # for a JetStream that has yet to start
_PAUSE_S = 0.25
_TIMEOUT_S = 5.0
_SERVER_IS_ALONE = 10074


class Store(NamedTuple):
    """A cluster's place in JetStream. The log's messages are published below ``root``."""

    client: Client
    js: JetStreamContext
    stream: str
    root: str
    leases: KeyValue


async def open_store(client: Client, cluster: str) -> Store:
    """Find the cluster's stream and bucket, or make them. Raises `TransportError`."""
    js = JetStreamContext(client, timeout=_TIMEOUT_S)
    await patiently(js.account_info)
    tag = tag_of(cluster).hex()
    about = f"Cuebook's log of cluster {cluster!r}, format {FORMAT}"
    stream = await patiently(lambda: _stream(js, tag, about))
    name = f"cuebook_{tag}_lease"
    leases = await patiently(lambda: _bucket(js, name, about, stream.num_replicas or 1))
    return Store(client, js, f"cuebook_{tag}", root_of(stream), leases)


def root_of(stream: StreamConfig) -> str:
    """Below which the stream's messages are published: another one for each stream that was ever made.

    So nothing that was meant for a stream gets into one that took its place.
    """
    return (stream.subjects or [""])[0].removesuffix(".>")


async def patiently(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ask again for a while where the servers are not ready yet. Raises `TransportError` in the end."""
    now = asyncio.get_running_loop().time
    began = now()
    while True:
        try:
            return await ask()
        except UNREACHABLE as error:
            nobody = isinstance(error, ServiceUnavailableError) and not error.err_code
            if nobody and now() - began > _NOBODY_S:
                raise TransportError(
                    "JetStream is off on the NATS servers, or for this account: start nats-server with "
                    "--jetstream, or allow it to the account."
                ) from error
            if now() - began > _PATIENCE_S:
                raise TransportError(f"JetStream can't keep the log: {told(error)}.") from error
        await asyncio.sleep(_PAUSE_S)


async def _stream(js: JetStreamContext, tag: str, about: str) -> StreamConfig:
    """The log's stream, which is made where there is none."""
    wanted = StreamConfig(
        name=f"cuebook_{tag}",
        description=about,
        subjects=[f"cuebook.{tag}.log.{secrets.token_hex(4)}.>"],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        num_replicas=REPLICAS,
        deny_delete=True,
        deny_purge=True,
    )
    try:
        found = (await js.stream_info(f"cuebook_{tag}")).config
    except NotFoundError:
        found = await _made(js, wanted)
    _check(found, about)
    if found.num_replicas == 1:
        logger.warning("The log is on one NATS server only: losing stream %s loses the order.", found.name)
    return found


async def _made(js: JetStreamContext, wanted: StreamConfig) -> StreamConfig:
    try:
        made = await js.add_stream(wanted)  # pyright: ignore[reportUnknownMemberType]
    except APIError as error:
        if error.err_code != _SERVER_IS_ALONE:
            raise
        wanted.num_replicas = 1
        made = await js.add_stream(wanted)  # pyright: ignore[reportUnknownMemberType]
    logger.info("The stream %s is made, with %s copies", wanted.name, made.config.num_replicas)
    return made.config


def _check(found: StreamConfig, about: str) -> None:
    """Raises `TransportError` for a stream that is not this log's, or that does not keep all of it."""
    if found.description != about:
        raise TransportError(
            f"The NATS stream {found.name} holds {found.description or 'something else'}, not {about}: "
            "give the cluster another name, or run the version that made the stream."
        )
    limits = (found.max_age or 0, found.max_msgs or -1, found.max_bytes or -1, found.max_msgs_per_subject)
    if limits != (0, -1, -1, -1) or found.storage != StorageType.FILE:
        raise TransportError(
            f"The NATS stream {found.name} would forget decisions: take away its limits on age, messages and "
            "bytes, and have it stored in files."
        )


async def _bucket(js: JetStreamContext, name: str, about: str, replicas: int) -> KeyValue:
    try:
        bucket = await js.key_value(name)
    except BucketNotFoundError:
        wanted = KeyValueConfig(name, f"{about}: who leads", ttl=LEASE_S, replicas=replicas)
        return await js.create_key_value(wanted)  # pyright: ignore[reportUnknownMemberType]
    ttl = (await bucket.status()).ttl
    if ttl != LEASE_S:
        raise TransportError(
            f"The NATS bucket {name} has a time to live of {ttl} s instead of {LEASE_S:g}: delete it while "
            "no node runs."
        )
    return bucket


def told(error: Exception) -> str:
    """An error of JetStream as a person would read it."""
    return (isinstance(error, APIError) and error.description) or str(error) or type(error).__name__
