"""Who may join: nobody but this machine, whoever has the secret, or whoever has a certificate.

- *open*: no proof and no encryption; the mesh then binds loopback only.
- *secret*: every process makes a self-signed certificate for TLS. In the greeting each side proves with an
  HMAC that it has the secret, over everything that was said and the fingerprint of the acceptor's certificate
  (the channel binding ``tls-server-end-point`` of RFC 5929), so that nobody can sit in between. The dialer
  proves first: who merely connects learns nothing to guess at. The key is stretched with scrypt (RFC 7914).
- *certificates*: mutual TLS with a certificate authority of the cluster. The node id must be the common name
  or a DNS or URI name in the node's certificate.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import ssl
import tempfile
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from actors.net.certificates import Certificates, load, new_context
from actors.net.transport import TransportError

MIN_SECRET = 12
"""Characters; whoever can connect may try to guess, so a short secret is none."""


class Mode(Enum):
    """How nodes prove that they belong to the cluster."""

    OPEN = "open"
    SECRET = "secret"
    CERTIFICATES = "certificates"


class Side(Enum):
    """Who proves: the labels keep one side's proof from being sent back as the other's."""

    DIALER = b"cuebook dialer"
    ACCEPTOR = b"cuebook acceptor"


class Security(NamedTuple):
    """What a node needs to prove itself and to check others."""

    mode: Mode
    key: bytes = b""
    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None
    fingerprint: bytes = b""
    """SHA-256 of the certificate that this node shows where it accepts."""
    until: datetime.datetime | None = None
    """When this node's certificate ends, where others know it by one."""

    def prove(self, side: Side, said: Iterable[bytes], fingerprint: bytes) -> bytes:
        """The proof of ``side`` over the messages ``said`` on a connection to ``fingerprint``'s owner."""
        if self.mode is not Mode.SECRET:
            return b""
        mac = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in (side.value, fingerprint, *said):
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.digest()

    def accepts(self, proof: bytes, side: Side, said: Iterable[bytes], fingerprint: bytes) -> bool:
        """Whether ``proof`` is what `prove` gives."""
        return hmac.compare_digest(proof, self.prove(side, said, fingerprint))


def security(cluster: str, secret: str = "", certificates: Certificates | None = None) -> Security:
    """The security that the settings ask for. Raises `TransportError`."""
    if secret and certificates:
        raise TransportError("Give a secret or certificates, not both: with certificates no secret is used.")
    if certificates:
        server, client, _, until = load(certificates)
        return Security(Mode.CERTIFICATES, server=server, client=client, until=until)
    return _with_secret(cluster, secret) if secret else Security(Mode.OPEN)


def fingerprint_of(ssl_object: ssl.SSLObject | None) -> bytes:
    """SHA-256 of the certificate that the other side of a connection showed; empty without TLS."""
    shown = ssl_object.getpeercert(binary_form=True) if ssl_object else None
    return hashlib.sha256(shown).digest() if shown else b""


def _with_secret(cluster: str, secret: str) -> Security:
    if len(secret) < MIN_SECRET:
        raise TransportError(
            f"The cluster's secret has {len(secret)} characters; give one with at least {MIN_SECRET}."
        )
    salt = hashlib.sha256(b"cuebook cluster " + cluster.encode()).digest()
    key = hashlib.scrypt(secret.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)
    server = new_context(ssl.PROTOCOL_TLS_SERVER)
    fingerprint = _load_self_signed(server)
    client = new_context(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE  # the certificate is authenticated by the proofs
    return Security(Mode.SECRET, key, server, client, fingerprint)


def _load_self_signed(context: ssl.SSLContext) -> bytes:
    """Give ``context`` a new key and certificate. Returns the certificate's fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cuebook")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # The ssl module reads keys from files only.
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "pair.pem")
        file.touch(mode=0o600)
        file.write_bytes(private + certificate.public_bytes(pem))
        context.load_cert_chain(file)
    return certificate.fingerprint(hashes.SHA256())
