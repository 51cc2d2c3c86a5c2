"""Opening a channel to another node's mesh port."""

from __future__ import annotations

import asyncio
import ssl

import aiohttp
from yarl import URL

from actors.net.auth import Security
from actors.net.channel import MAX_FRAME, PATH, Channel
from actors.net.greeting import Refused

_CLOSING = aiohttp.ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue]  (made with attrs)
CONNECT_S = 2.0
"""Seconds until an address that doesn't answer is given up."""
OPEN_S = 5.0
"""Seconds until one that takes the connection, and then says nothing, is."""


class HungUp(ConnectionError):
    """TLS came about, and then nothing: asyncio hides the alert of one who minds the dialer's certificate."""


def new_client() -> aiohttp.ClientSession:
    """What `open_channel` dials with; to be closed by whoever made it."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_S))


async def open_channel(client: aiohttp.ClientSession, own: Security, host: str, port: int) -> Channel:
    """A WebSocket to the mesh port at ``host``. Raises `Refused` where TLS fails, else OSError."""
    url = URL.build(scheme="wss" if own.client else "ws", host=host, port=port, path=PATH)
    try:
        async with asyncio.timeout(OPEN_S):
            ws = await client.ws_connect(
                url,
                ssl=own.client or False,
                compress=0,
                max_msg_size=MAX_FRAME,
                timeout=_CLOSING,
            )
    except aiohttp.ClientError as error:
        failure = _tls_failure(error)
        if failure is not None:
            raise Refused(tls_refusal(failure)) from error
        if own.client and isinstance(error, aiohttp.ServerDisconnectedError):
            raise HungUp(
                f"{host} port {port} hung up: it doesn't accept this node's certificate or secret"
            ) from error
        raise ConnectionError(f"can't reach {host} port {port}: {error}") from error
    return Channel(ws, host, port)


def tls_refusal(failure: ssl.SSLError) -> str:
    """The sentence for a TLS handshake that failed on either side."""
    if failure.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return "the node there has neither the cluster's secret nor a certificate: set them alike on both."
    why = getattr(failure, "verify_message", None) or failure.reason or failure
    return (
        f"the TLS handshake with the node there failed ({why}): "
        "both need the same secret, or certificates of the same authority."
    )


def _tls_failure(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None:
        inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)
        if isinstance(inner, ssl.SSLError):
            return inner
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None
