"""Certificates of a cluster's own authority: read, and tried on this node before another sees them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec import Struct

from actors.net.transport import TransportError


class Certificates(Struct, frozen=True, kw_only=True):
    """PEM files: the cluster's authority, this node's certificate and its key."""

    authority: Path
    certificate: Path
    key: Path


class Loaded(NamedTuple):
    """Contexts for both ends of a link; the names in the node's certificate, and until when it is good."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    names: tuple[str, ...]
    until: datetime


def load(files: Certificates) -> Loaded:
    """What the files are good for. Raises `TransportError` for what other nodes would not accept either."""
    _check_pem(files.authority, "the authority's certificate", b"CERTIFICATE-----")
    _check_pem(files.certificate, "this node's certificate", b"CERTIFICATE-----")
    _check_pem(files.key, "this node's key", b"PRIVATE KEY-----")
    server, client = new_context(ssl.PROTOCOL_TLS_SERVER), new_context(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # the node id is checked instead of the host name
    for context in (server, client):
        _load_into(context, files)
        context.verify_mode = ssl.CERT_REQUIRED
    shown = _tried(server, client, files)
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(shown["notAfter"]), UTC)
    return Loaded(server, client, _names(shown), until)


def new_context(protocol: int) -> ssl.SSLContext:
    """A context that speaks nothing older than TLS 1.3."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def names_in(ssl_object: ssl.SSLObject | None) -> tuple[str, ...]:
    """The common names, then the DNS and URI names in a verified peer's certificate."""
    return _names(_shown(ssl_object)) if ssl_object else ()


def _shown(ssl_object: ssl.SSLObject) -> dict[str, Any]:
    """The fields of a verified peer's certificate; none where it showed none."""
    return cast(dict[str, Any], ssl_object.getpeercert() or {})


def _names(shown: dict[str, Any]) -> tuple[str, ...]:
    common = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    return tuple(dict.fromkeys([*common, *others]))


def _check_pem(path: Path, what: str, mark: bytes) -> None:
    try:
        found = mark in path.read_bytes()
    except OSError as error:
        raise TransportError(f"{path}, {what}, can't be read: {error.strerror or error}.") from error
    if not found:
        raise TransportError(f"{path}, {what}, is none in PEM.")


def _load_into(context: ssl.SSLContext, files: Certificates) -> None:
    def no_password() -> str:  # without this OpenSSL would ask for it at the terminal
        raise TransportError(f"{files.key}, this node's key, has a password: give one without.")

    blamed = f"{files.authority} can't be used"
    try:
        context.load_verify_locations(files.authority)
        blamed = f"{files.certificate} with the key {files.key} can't be used"
        context.load_cert_chain(files.certificate, files.key, no_password)
    except ssl.SSLError as error:
        why = error.reason or error
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            why = "the key belongs to another certificate"
        raise TransportError(f"The certificate {blamed}: {why}.") from error


def _tried(server: ssl.SSLContext, client: ssl.SSLContext, files: Certificates) -> dict[str, Any]:
    """Shake hands with oneself, as others would be the first to refuse. Returns what the node showed."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialer, acceptor = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for end in (dialer, acceptor, dialer, acceptor):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", None) or error.reason or error
            raise TransportError(
                f"The certificate {files.certificate} does not pass with the authority {files.authority}: "
                f"{why}."
            ) from error
    return _shown(acceptor)
