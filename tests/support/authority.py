"""Certificates as an administrator would make them: an authority and what it signs."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from actors.net.certificates import Certificates

PEM = serialization.Encoding.PEM
A_DAY = datetime.timedelta(days=1)


class Authority:
    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory / name
        self._directory.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraint = x509.BasicConstraints(ca=True, path_length=0)
        own = self._builder(self._name, self._key).add_extension(constraint, critical=True)
        self.file = self._directory / "authority.pem"
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(PEM))

    def sign(self, node_id: str, until: datetime.timedelta = A_DAY) -> Certificates:
        """Files for a node; ``until`` is from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
        certificate = self._builder(subject, key, until).sign(self._key, hashes.SHA256())
        files = Certificates(
            authority=self.file,
            certificate=self._directory / f"{node_id}.pem",
            key=self._directory / f"{node_id}.key",
        )
        files.certificate.write_bytes(certificate.public_bytes(PEM))
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        files.key.write_bytes(private)
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime.timedelta = A_DAY
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - A_DAY)
            .not_valid_after(now + until)
        )
