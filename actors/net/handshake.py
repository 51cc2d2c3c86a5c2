"""The greeting, carried out: each side of it on a channel."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from actors.net.auth import Security, Side, fingerprint_of
from actors.net.certificates import names_in
from actors.net.channel import Channel
from actors.net.greeting import (
    PROTOCOL,
    Address,
    Challenge,
    Greeting,
    Hello,
    Lane,
    Myself,
    Proof,
    Refusal,
    Refused,
    Terms,
    Welcome,
    no_secret,
    objection,
    pack,
    tag_of,
    unpack,
)
from actors.net.transport import Peer

GREETING_S = 3.0
"""Seconds that a greeting may take."""

T = TypeVar("T", bound=Greeting)


class Greeted(NamedTuple):
    """Who is on the other side of a channel, in which of its runs, and what the link is for."""

    peer: Peer
    process: str
    lane: Lane
    life: str
    known: list[Address]


async def greet(channel: Channel, terms: Terms, own: Security, lane: Lane, life: str) -> Greeted:
    """The dialer's side. Raises `Refused`, ConnectionError or TimeoutError."""
    async with asyncio.timeout(GREETING_S):
        try:
            return await _greet(channel, terms, own, lane, life)
        except Refused as refused:
            await _refuse(channel, refused)
            raise


async def answer_greeting(
    channel: Channel, terms: Terms, own: Security, known: Callable[[str], list[Address]]
) -> Greeted:
    """The acceptor's side. Raises `Refused`, ConnectionError or TimeoutError."""
    async with asyncio.timeout(GREETING_S):
        try:
            return await _answer(channel, terms, own, known)
        except Refused as refused:
            await _refuse(channel, refused)
            raise


async def _greet(channel: Channel, terms: Terms, own: Security, lane: Lane, life: str) -> Greeted:
    nonce = secrets.token_bytes(32)
    tag = tag_of(terms.cluster)
    hello = pack(Hello(PROTOCOL, terms.process, tag, terms.mode, lane, life, terms.me, nonce))
    await channel.send(hello)
    said = await channel.receive()
    challenge = _expect(Challenge, said)
    try:
        _check(terms, challenge, channel)
        shown = fingerprint_of(channel.ssl_object)
        await channel.send(pack(Proof(own.prove(Side.DIALER, (hello, said), shown))))
        welcome = _expect(Welcome, await channel.receive())
        if not own.accepts(welcome.mac, Side.ACCEPTOR, (hello, said), shown):
            raise Refused(no_secret(challenge.peer, terms.cluster))
    except Refused as refused:
        refused.node_id = challenge.peer.node_id
        raise
    peer = _at(challenge.peer, channel.host, channel.port)
    return Greeted(peer, challenge.process, lane, life, welcome.known)


async def _answer(
    channel: Channel, terms: Terms, own: Security, known: Callable[[str], list[Address]]
) -> Greeted:
    said = await channel.receive()
    hello = _expect(Hello, said)
    challenge = pack(
        Challenge(
            PROTOCOL, terms.process, tag_of(terms.cluster), terms.mode, terms.me, secrets.token_bytes(32)
        )
    )
    try:
        _check(terms, hello, channel)
    except Myself:
        await channel.send(challenge)  # the dialer has to see it too
        raise
    await channel.send(challenge)
    proof = _expect(Proof, await channel.receive())
    if not own.accepts(proof.mac, Side.DIALER, (said, challenge), own.fingerprint):
        raise Refused(no_secret(hello.peer, terms.cluster))
    mac = own.prove(Side.ACCEPTOR, (said, challenge), own.fingerprint)
    await channel.send(pack(Welcome(mac, known(channel.host))))
    peer = _at(hello.peer, channel.host, hello.peer.port)
    return Greeted(peer, hello.process, hello.lane, hello.life, [])


def _check(terms: Terms, other: Hello | Challenge, channel: Channel) -> None:
    why = objection(terms, other, names_in(channel.ssl_object))
    if why:
        raise Refused(why)


def _expect(kind: type[T], data: bytes) -> T:
    greeting = unpack(data)
    if isinstance(greeting, Refusal):
        raise Refused(greeting.why, by_peer=True)
    if not isinstance(greeting, kind):
        raise Refused(f"it said {type(greeting).__name__} where {kind.__name__} was due")
    return greeting


async def _refuse(channel: Channel, refused: Refused) -> None:
    if not refused.by_peer and not isinstance(refused, Myself):
        await channel.send(pack(Refusal(str(refused))))


def _at(peer: Peer, host: str, port: int) -> Peer:
    return msgspec.structs.replace(peer, host=host, port=port)
